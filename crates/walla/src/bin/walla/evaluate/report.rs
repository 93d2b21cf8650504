//! The card: a table for people, and JSON.

use std::io::Write;

use super::*;
use crate::{inspect, one_line};

/// Maximum characters of a reply in the table.
const MAX_SHOWN: usize = 160;

/// Maximum failures of a part in the table: all of the actions.
const MAX_FAILURES: usize = 20;

/// Counts of the replies of one part, by one policy or way.
pub struct Section {
    pub name: &'static str,
    pub right: usize,
    pub of: usize,
    /// Counts of other outcomes.
    pub others: Vec<(&'static str, usize)>,
    pub failures: Vec<Fault>,
}

/// A reply that is not as expected.
pub struct Fault {
    pub ask: String,
    pub expected: String,
    pub got: String,
}

impl Section {
    pub fn new(name: &'static str) -> Self {
        Self { name, right: 0, of: 0, others: Vec::new(), failures: Vec::new() }
    }

    /// Counts a reply that `is_right` judges.
    pub fn take(&mut self, is_right: bool, fault: impl FnOnce() -> Fault) {
        self.of += 1;
        self.right += usize::from(is_right);
        if !is_right {
            self.failures.push(fault());
        }
    }

    fn to_json(&self) -> Value {
        let others: serde_json::Map<_, _> = self
            .others
            .iter()
            .map(|(name, count)| (name.replace(' ', "_"), json!(count)))
            .collect();
        let fault = |fault: &Fault| {
            let Fault { ask, expected, got } = fault;
            json!({"ask": ask, "expected": expected, "got": got})
        };
        let failures: Vec<Value> = self.failures.iter().map(fault).collect();
        json!({
            "name": self.name, "right": self.right, "of": self.of, "others": others,
            "failures": failures,
        })
    }
}

/// All that was measured.
pub struct Card {
    pub model: Value,
    pub speed: Option<speed::Speed>,
    pub sections: Vec<Section>,
}

impl Card {
    pub fn print(&self, out: &mut impl Write) -> Result<(), Failure> {
        let model = &self.model;
        let text = |name: &str| one_line(model[name].as_str().unwrap_or_default());
        let number = |name: &str| model[name].as_u64().unwrap_or_default();
        writeln!(
            out,
            "{}: {}, {:.0} MB, {}; calls {}, template {}",
            text("file"),
            text("architecture"),
            number("file_bytes") as f64 / 1e6,
            text("types"),
            text("calls"),
            text("template"),
        )?;
        let device = &model["device"];
        writeln!(
            out,
            "{} {}, {} threads, {}\n",
            one_line(device["description"].as_str().unwrap_or_default()),
            device["variant"].as_str().unwrap_or_default(),
            device["threads"],
            text("system"),
        )?;
        if let Some(speed) = &self.speed {
            speed.print(out)?;
        }
        for section in &self.sections {
            let Section { name, right, of, others, .. } = section;
            let others: Vec<_> =
                others.iter().map(|(name, count)| format!("{name} {count}")).collect();
            let count = format!("{right} of {of}");
            let row = format!("{name:<44} {count:>9}  {}", others.join(", "));
            writeln!(out, "{}", row.trim_end())?;
        }
        for section in self.sections.iter().filter(|section| !section.failures.is_empty()) {
            writeln!(out, "\n{}", section.name)?;
            for Fault { ask, expected, got } in section.failures.iter().take(MAX_FAILURES) {
                let mut got: String = one_line(got);
                if let Some((end, _)) = got.char_indices().nth(MAX_SHOWN) {
                    got.truncate(end);
                    got.push('…');
                }
                writeln!(out, "  {ask}\n    expected {expected}\n    got      {got}")?;
            }
            let more = section.failures.len().saturating_sub(MAX_FAILURES);
            if more > 0 {
                writeln!(out, "  and {more} more (--json FILE lists all)")?;
            }
        }
        Ok(())
    }

    pub fn to_json(&self) -> Value {
        let sections: Vec<Value> = self.sections.iter().map(Section::to_json).collect();
        let speed = self.speed.as_ref().map(speed::Speed::to_json);
        json!({"model": self.model, "speed": speed, "sections": sections})
    }
}

/// The model, its file and the machine.
pub fn model(engine: &Engine, arguments: &Evaluate) -> Result<Value, Failure> {
    let card = engine.model().ok_or(NO_MODEL)?;
    let (file, name) = match &arguments.model {
        Some(path) => (load::open_quietly(path)?, path.file_name().unwrap_or_default()),
        None => (load::demo()?.model.open()?, "demo".as_ref()),
    };
    let device = &card.device;
    Ok(json!({
        "file": name.to_string_lossy(),
        "file_bytes": card.file_bytes,
        "fingerprint": format!("{:016x}", card.fingerprint),
        "name": card.name,
        "architecture": card.architecture,
        "types": types(&inspect::tensors(&file)["types"]),
        "calls": format!("{:?}", card.call_format),
        "template": card.template.to_string(),
        "context_train": card.context_train,
        "device": {
            "name": device.name, "description": device.description, "variant": device.variant,
            "threads": device.threads,
        },
        "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        "walla": env!("CARGO_PKG_VERSION"),
    }))
}

/// Tensor types by their share of the bytes, the largest first.
fn types(types: &Value) -> String {
    let bytes = |of: &Value| of["bytes"].as_u64().unwrap_or_default();
    let mut all: Vec<_> =
        types.as_object().into_iter().flatten().map(|(ty, of)| (bytes(of), ty)).collect();
    let sum: u64 = all.iter().map(|(bytes, _)| bytes).sum();
    all.sort_by(|a, b| b.cmp(a));
    let share = |(bytes, ty): &(u64, &String)| {
        format!("{ty} {:.0} %", 100.0 * *bytes as f64 / sum.max(1) as f64)
    };
    let large: Vec<_> = all.iter().filter(|(bytes, _)| bytes * 200 >= sum).map(share).collect();
    large.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_shares_of_the_bytes() {
        let all = json!({"F32": {"bytes": 1}, "Q4_K": {"bytes": 599}, "Q6_K": {"bytes": 400}});
        assert_eq!(types(&all), "Q4_K 60 %, Q6_K 40 %");
        assert_eq!(types(&json!({})), "");
    }

    #[test]
    fn a_long_reply_is_shortened_in_the_table_and_whole_in_the_file() {
        let mut section = Section::new("memory");
        let fault =
            || Fault { ask: "Who?".into(), expected: "bees".into(), got: "ä\n".repeat(200) };
        section.take(false, fault);
        section.take(true, || unreachable!("a right reply has no fault"));
        let card = Card { model: json!({}), speed: None, sections: vec![section] };
        let mut out = Vec::new();
        card.print(&mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains("1 of 2\n") && out.contains("ä ä …\n"), "{out}");
        let json = card.to_json();
        assert_eq!(json["sections"][0]["failures"][0]["got"], "ä\n".repeat(200));
    }
}
