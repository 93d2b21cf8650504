//! The rules of `deny.toml`, as far as this check knows them.
//!
//! A section or key that it does not know is an error: a rule that only `cargo deny` applies would
//! not be checked in CI.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The registry that needs no entry in `[sources]`.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Rules for the packages of a graph.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Licences, with their exceptions.
    pub licenses: BTreeSet<String>,
    /// Allowed sources, as `cargo metadata` spells them.
    pub sources: BTreeSet<String>,
    /// Crates that may not be in the graph.
    pub banned: BTreeSet<String>,
    /// Crates and their banned features.
    pub features: Vec<(String, Vec<String>)>,
    /// Name and exact version of duplicates that are allowed.
    pub duplicates: Vec<(String, String)>,
}

impl Rules {
    /// Reads the text of `deny.toml`.
    ///
    /// # Errors
    /// A key that is unknown here, or a value that this check cannot apply.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file = parse_toml(text).map_err(|error| format!("deny.toml: {error}"))?;
        Self::from_value(&file).map_err(|reason| format!("deny.toml: {reason}"))
    }

    fn from_value(file: &Value) -> Result<Self, String> {
        known(file, "", &["graph", "advisories", "licenses", "bans", "sources"])?;
        let [graph, licenses, bans, sources] =
            ["graph", "licenses", "bans", "sources"].map(|name| &file[name]);
        known(graph, "graph", &["all-features"])?;
        fixed(graph, "graph", &[("all-features", true.into())])?;
        known(licenses, "licenses", &["allow"])?;
        let of_bans = [
            "multiple-versions",
            "multiple-versions-include-dev",
            "wildcards",
            "allow-wildcard-paths",
            "deny",
            "features",
            "skip",
        ];
        known(bans, "bans", &of_bans)?;
        let strict = [
            ("multiple-versions", "deny".into()),
            ("multiple-versions-include-dev", true.into()),
            ("wildcards", "deny".into()),
            ("allow-wildcard-paths", true.into()),
        ];
        fixed(bans, "bans", &strict)?;
        known(sources, "sources", &["unknown-registry", "unknown-git", "allow-registry"])?;
        let strict = [("unknown-registry", "deny".into()), ("unknown-git", "deny".into())];
        fixed(sources, "sources", &strict)?;
        let mut allowed: BTreeSet<String> = [CRATES_IO.to_owned()].into();
        for registry in texts(sources, "allow-registry")? {
            allowed.insert(format!("registry+{registry}"));
        }
        Ok(Self {
            licenses: texts(licenses, "allow")?.into_iter().collect(),
            sources: allowed,
            banned: entries(bans, "deny", &[])?.into_iter().map(|(name, _)| name).collect(),
            features: entries(bans, "features", &["deny"])?
                .into_iter()
                .map(|(name, entry)| Ok((name, texts(entry, "deny")?)))
                .collect::<Result<_, String>>()?,
            duplicates: entries(bans, "skip", &[])?
                .into_iter()
                .map(|(name, _)| match name.split_once('@') {
                    Some((name, version)) => Ok((name.to_owned(), version.to_owned())),
                    None => Err(format!("bans.skip: {name:?} needs a version: `name@version`")),
                })
                .collect::<Result<_, String>>()?,
        })
    }
}

/// TOML as a JSON value.
///
/// # Errors
/// A syntax error.
pub fn parse_toml(text: &str) -> Result<Value, String> {
    let document: toml_edit::DocumentMut = text.parse().map_err(|e| format!("{e}"))?;
    let table = document.as_table().clone().into_inline_table();
    Ok(json(&table.into()))
}

fn json(value: &toml_edit::Value) -> Value {
    match value {
        toml_edit::Value::String(text) => Value::from(text.value().as_str()),
        toml_edit::Value::Integer(number) => Value::from(*number.value()),
        toml_edit::Value::Float(number) => Value::from(*number.value()),
        toml_edit::Value::Boolean(flag) => Value::from(*flag.value()),
        toml_edit::Value::Datetime(date) => Value::from(date.value().to_string()),
        toml_edit::Value::Array(items) => items.iter().map(json).collect(),
        toml_edit::Value::InlineTable(table) => {
            let pairs = table.iter().map(|(key, value)| (key.to_owned(), json(value)));
            Value::Object(pairs.collect::<Map<_, _>>())
        }
    }
}

/// Refuses keys that this check does not apply.
fn known(table: &Value, section: &str, keys: &[&str]) -> Result<(), String> {
    let table = match table {
        Value::Null => return Ok(()),
        Value::Object(table) => table,
        _ => return Err(format!("[{section}] is no table")),
    };
    match table.keys().find(|key| !keys.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            let key = [section, key].join(".");
            Err(format!("{} is unknown to `xtask dependencies`", key.trim_start_matches('.')))
        }
    }
}

/// Requires values that this check always applies.
fn fixed(table: &Value, section: &str, pairs: &[(&str, Value)]) -> Result<(), String> {
    match pairs.iter().find(|(key, value)| table[key] != *value) {
        None => Ok(()),
        Some((key, value)) => Err(format!("{section}.{key} has to be {value}")),
    }
}

fn texts(table: &Value, key: &str) -> Result<Vec<String>, String> {
    let items = match &table[key] {
        Value::Null => return Ok(Vec::new()),
        Value::Array(items) => items,
        _ => return Err(format!("{key} is no list")),
    };
    let text = |item: &Value| item.as_str().map(str::to_owned);
    items.iter().map(|item| text(item).ok_or_else(|| format!("{key}: {item} is no text"))).collect()
}

/// Entries about crates: each is a text, or a table with `crate`, `reason` and the `extra` keys.
fn entries<'a>(
    table: &'a Value,
    key: &str,
    extra: &[&str],
) -> Result<Vec<(String, &'a Value)>, String> {
    let items = table[key].as_array().map_or(&[][..], Vec::as_slice);
    let mut entries = Vec::new();
    for item in items {
        if item.is_object() {
            known(item, &format!("bans.{key}"), &[&["crate", "reason"], extra].concat())?;
        }
        let name = item.as_str().or_else(|| item["crate"].as_str());
        let name = name.ok_or_else(|| format!("bans.{key}: an entry names no crate"))?;
        if name.contains([':', '=', '<', '>', '^', '~', '*', ' ']) {
            return Err(format!("bans.{key}: {name:?} is neither a name nor `name@version`"));
        }
        entries.push((name.to_owned(), item));
    }
    Ok(entries)
}
