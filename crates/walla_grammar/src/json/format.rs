//! Formats of strings and numbers.
//!
//! Dates and times are written as patterns, because the library's formats allow 29 February in
//! every year and leap seconds at any minute.

use super::schema::MAX_NUMBER;

/// How a format is enforced.
pub(super) enum Format {
    /// By a regular expression that matches the whole string.
    Pattern(String),
    /// By the library.
    Library(&'static str),
    /// It restricts numbers: see [`integer_range`].
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
        "float" | "double" => Some(Format::Number),
        _ => integer_range(name).map(|_| Format::Number),
    }
}

/// Lowest and highest value of a format of integers ([OpenAPI format
/// registry](https://spec.openapis.org/registry/format/), and the names that `schemars` writes),
/// within the exact numbers.
pub(super) fn integer_range(name: &str) -> Option<(f64, f64)> {
    Some(match name {
        "int8" => (-128.0, 127.0),
        "int16" => (-32_768.0, 32_767.0),
        "int32" => (-2_147_483_648.0, 2_147_483_647.0),
        "int" | "int64" | "int128" => (-MAX_NUMBER, MAX_NUMBER),
        "uint8" => (0.0, 255.0),
        "uint16" => (0.0, 65_535.0),
        "uint32" => (0.0, 4_294_967_295.0),
        "uint" | "uint64" | "uint128" => (0.0, MAX_NUMBER),
        _ => return None,
    })
}
