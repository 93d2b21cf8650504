use serde_json::json;

use super::*;

const DENY: &str = include_str!("../../../deny.toml");

/// The rules of the repository, without the duplicates that its graph has.
fn rules() -> Rules {
    Rules { duplicates: Vec::new(), ..Rules::parse(DENY).expect("the repository's deny.toml") }
}

fn package(name: &str, version: &str, license: &str) -> Value {
    json!({
        "name": name,
        "version": version,
        "id": format!("{name}@{version}"),
        "license": license,
        "source": "registry+https://github.com/rust-lang/crates.io-index",
        "dependencies": [],
    })
}

fn found(packages: Vec<Value>, rules: &Rules) -> Vec<String> {
    faults(&json!({"packages": packages, "resolve": {"nodes": []}}), rules)
}

#[test]
fn a_forbidden_license_is_found() {
    for allowed in [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-3.0-only OR MIT",
        "(MIT OR GPL-2.0) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception",
        "MIT AND (Apache-2.0 OR LGPL-2.1-or-later)",
    ] {
        assert_eq!(found(vec![package("a", "1.0.0", allowed)], &rules()), [""; 0], "{allowed}");
    }
    for forbidden in [
        "GPL-3.0-only",
        "MIT AND GPL-3.0-only",
        "GPL-3.0-only OR AGPL-3.0-only",
        "MIT OR GPL-2.0 AND",
        "Zlib WITH LLVM-exception",
        "GPL-2.0 AND MIT OR GPL-3.0",
        "(MIT",
        "MIT Apache-2.0",
        "",
    ] {
        let faults = found(vec![package("a", "1.0.0", forbidden)], &rules());
        assert_eq!(faults.len(), 1, "{forbidden}");
        assert!(faults[0].contains("a 1.0.0") && faults[0].contains(forbidden), "{faults:?}");
    }
    let mut without = package("a", "1.0.0", "MIT");
    without["license"] = Value::Null;
    assert_eq!(found(vec![without], &rules()), ["a 1.0.0 has no licence expression"]);
}

#[test]
fn an_unknown_source_is_found() {
    for source in [
        "git+https://example.org/a?rev=1#1",
        "registry+https://example.org/index",
        "sparse+https://example.org/index/",
    ] {
        let mut foreign = package("a", "1.0.0", "MIT");
        foreign["source"] = source.into();
        let faults = found(vec![foreign], &rules());
        assert_eq!(faults, [format!("a 1.0.0: deny.toml does not allow the source {source}")]);
    }
    let mut path = package("a", "1.0.0", "MIT");
    path["source"] = Value::Null;
    assert_eq!(found(vec![path], &rules()), [""; 0]);
}

#[test]
fn a_lock_file_with_an_unknown_source_is_found() {
    let lock = |source: &str| {
        format!(
            "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"{source}\"\n"
        )
    };
    let known = lock("registry+https://github.com/rust-lang/crates.io-index");
    assert_eq!(lock_faults(&known, &rules()), Ok(Vec::new()));
    let faults = lock_faults(&lock("git+https://example.org/a#1"), &rules()).unwrap();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(lock_faults("version = 4\n", &rules()).is_err(), "an empty lock file checks nothing");
}

#[test]
fn a_new_duplicate_is_found() {
    let packages = || ["1.0.0", "1.1.0", "2.0.0"].map(|v| package("a", v, "MIT")).to_vec();
    let faults = found(packages(), &rules());
    assert_eq!(faults.len(), 1);
    assert!(faults[0].contains("1.0.0, 1.1.0, 2.0.0"), "{faults:?}");
    let skip = |versions: &[&str]| Rules {
        duplicates: versions.iter().map(|v| ("a".to_owned(), (*v).to_owned())).collect(),
        ..rules()
    };
    assert_eq!(found(packages(), &skip(&["1.0.0"])).len(), 1, "two are left");
    assert_eq!(found(packages(), &skip(&["1.0.0", "1.1.0"])), [""; 0]);
    // A skip entry without a duplicate would hide a future duplicate.
    let faults = found(packages(), &skip(&["1.0.0", "1.1.0", "0.9.0"]));
    assert!(faults[0].contains("a@0.9.0"), "{faults:?}");
    assert_eq!(found(vec![package("a", "1.0.0", "MIT")], &skip(&["1.0.0"])).len(), 1);
}

#[test]
fn banned_crates_features_and_wildcards_are_found() {
    assert_eq!(found(vec![package("bevy", "0.20.1", "MIT")], &rules()).len(), 1);
    let cudarc = package("cudarc", "0.19.10", "MIT");
    let node = |features: &[&str]| json!({"nodes": [{"id": cudarc["id"], "features": features}]});
    let metadata = json!({"packages": [cudarc], "resolve": node(&["driver", "std"])});
    assert_eq!(faults(&metadata, &rules()), [""; 0]);
    let metadata = json!({"packages": [cudarc], "resolve": node(&["driver", "nccl"])});
    assert_eq!(faults(&metadata, &rules()), ["cudarc: the feature nccl is banned"]);
    let metadata = json!({"packages": [cudarc], "resolve": node(&["driver", "runtime"])});
    assert_eq!(faults(&metadata, &rules()), [""; 0], "with CUPTI");
    assert_eq!(banned_features(&metadata, &inactive_by_default()).len(), 1, "without");
    let mut ours = package("ours", "0.1.0", "MIT");
    ours["source"] = Value::Null;
    ours["dependencies"] =
        json!([{"name": "a", "req": "*"}, {"name": "b", "req": "*", "path": "b"}]);
    assert_eq!(found(vec![ours], &rules()), ["ours 0.1.0 accepts every version of \"a\""]);
}

#[test]
fn rules_that_cannot_be_applied_are_refused() {
    for (from, to) in [
        ("[sources]", "[sources]\nallow-git = [\"https://example.org/a\"]"),
        ("[licenses]", "[licenses]\nexceptions = []"),
        ("unknown-git = \"deny\"", "unknown-git = \"warn\""),
        ("multiple-versions = \"deny\"", "multiple-versions = \"warn\""),
        ("[graph]", "[other]\nx = 1\n[graph]"),
        ("{ crate = \"bevy\" }", "{ crate = \"bevy\", wrappers = [\"a\"] }"),
        ("{ crate = \"bevy\" }", "\"bevy:<0.20\""),
    ] {
        assert!(DENY.contains(from), "{from}");
        let changed = DENY.replacen(from, to, 1);
        assert!(Rules::parse(&changed).is_err(), "{to}");
    }
    assert!(Rules::parse("[graph").unwrap_err().starts_with("deny.toml: "));
}
