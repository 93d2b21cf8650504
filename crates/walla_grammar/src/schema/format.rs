//! Formats of strings and numbers.
//!
//! Dates and times are written as patterns, because the library's formats allow 29 February in
//! every year and leap seconds at any minute.

/// How a format is enforced.
pub(super) enum Format {
    /// By a regular expression that matches the whole string.
    Pattern(String),
    /// By the library.
    Library(&'static str),
    /// It restricts numbers: see [`of_numbers`].
    Number,
}

/// RFC 3339, without leap seconds.
const DATE: &str = "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])\
    |(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))\
    |(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";
const TIME: &str = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?\
    (?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// ISO 8601 durations as in RFC 3339, appendix A, with at most nine digits per number.
const DURATION: &str = "P(?:[0-9]{1,9}W\
    |(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)\
    (?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?\
    |T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))";

/// RFC 1123 names of at most four labels of 60 characters; a label has no hyphens in third and
/// fourth place.
const HOSTNAME: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9]?|[a-zA-Z0-9-][a-zA-Z0-9]{1,58})\
    (?:\\.[a-zA-Z](?:[a-zA-Z0-9]?|[a-zA-Z0-9-][a-zA-Z0-9]{1,58})){0,3}";

/// A part of RFC 5321: a dot string and a host name.
const EMAIL: &str = "[a-zA-Z0-9_+-]{1,32}(?:\\.[a-zA-Z0-9_+-]{1,31})?\
    @[a-zA-Z](?:[a-zA-Z0-9]?|[a-zA-Z0-9-][a-zA-Z0-9]{1,58})\
    (?:\\.[a-zA-Z](?:[a-zA-Z0-9]?|[a-zA-Z0-9-][a-zA-Z0-9]{1,58})){1,2}";

/// A part of RFC 3986: a scheme, and a host or path.
const URI: &str = "[a-z][a-z0-9+.-]{1,15}:(?://[a-zA-Z](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::[0-9]{1,4})?)?\
    (?:/[a-zA-Z0-9._~!$&'()*+,;=:@-]*)*";

/// The format of a name.
pub(super) fn lookup(name: &str) -> Option<Format> {
    let whole = |regex: &str| Some(Format::Pattern(format!("^(?:{regex})$")));
    match name {
        "date" => whole(DATE),
        "time" => whole(TIME),
        "date-time" => whole(&format!("{DATE}T{TIME}")),
        "duration" => whole(DURATION),
        "hostname" => whole(HOSTNAME),
        "email" => whole(EMAIL),
        "uri" => whole(URI),
        "ipv4" => Some(Format::Library("ipv4")),
        "ipv6" => Some(Format::Library("ipv6")),
        "uuid" => Some(Format::Library("uuid")),
        _ => of_numbers(name).map(|_| Format::Number),
    }
}

/// Formats of numbers ([OpenAPI format registry](https://spec.openapis.org/registry/format/), and the
/// names that `schemars` writes), with their lowest and highest values.
const NUMBERS: [(&str, f64, f64); 14] = [
    ("int8", -128.0, 127.0),
    ("int16", -32_768.0, 32_767.0),
    ("int32", -2_147_483_648.0, 2_147_483_647.0),
    ("int64", -9_223_372_036_854_775_808.0, 9_223_372_036_854_774_784.0),
    ("int128", f64::NEG_INFINITY, f64::INFINITY),
    ("int", -9_223_372_036_854_775_808.0, 9_223_372_036_854_774_784.0),
    ("uint8", 0.0, 255.0),
    ("uint16", 0.0, 65_535.0),
    ("uint32", 0.0, 4_294_967_295.0),
    ("uint64", 0.0, 18_446_744_073_709_549_568.0),
    ("uint128", 0.0, f64::INFINITY),
    ("uint", 0.0, 18_446_744_073_709_549_568.0),
    ("float", f64::NEG_INFINITY, f64::INFINITY),
    ("double", f64::NEG_INFINITY, f64::INFINITY),
];

/// A format of numbers.
pub(super) fn of_numbers(name: &str) -> Option<(&'static str, f64, f64)> {
    NUMBERS.into_iter().find(|(known, ..)| *known == name)
}
