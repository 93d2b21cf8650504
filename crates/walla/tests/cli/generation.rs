//! `walla generate` and `walla chat`: text.

use walla_doubles::synth::{self, Dialect, Mixture, Model};

use crate::command::{
    reference, reference_json, run, run_with_input, scratch, succeed, tiny, walla,
};

/// From the beginning-of-text token alone, the story that was published with the model. The scalar
/// kernels round activations to f16, so the text may differ from the near-tie that the reference
/// records, not before it.
#[test]
fn the_published_text_is_generated() {
    let model = reference("models/tinystories-260k.gguf");
    let json = reference_json("models/tinystories-260k.json");
    let expected = json["greedy_text"].as_str().unwrap();
    let certain = json["greedy_near_tie"]["text_before"].as_str().unwrap();
    assert!(expected.starts_with(certain) && certain.len() > 400);
    let ran = run(&[
        "generate",
        model.to_str().unwrap(),
        "--prompt",
        "",
        "-n",
        "200",
        "--greedy",
        "--device",
        "cpu",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    // The reference omits the single leading space of a text in this vocabulary.
    let found = ran.out.strip_prefix(' ').unwrap_or(&ran.out);
    assert!(found.starts_with(certain), "{found:?}\nis not\n{expected:?}");
    assert!(ran.err.contains("200 tokens at") && ran.err.contains("tokens/s"), "{}", ran.err);
}

#[test]
fn a_prompt_is_continued_as_by_the_reference() {
    let model = reference("models/tinystories-260k.gguf");
    let json = reference_json("models/tinystories-260k.json");
    let model = model.to_str().unwrap();
    for case in json["greedy"].as_array().unwrap().iter().skip(1) {
        let prompt = case["prompt"].as_str().unwrap();
        let gaps = case["top1_gaps"].as_array().unwrap();
        // Tokens before the first choice that rounding may change.
        let certain = gaps.iter().take_while(|gap| gap.as_f64().unwrap() > 0.05).count();
        let prompt_ids = case["prompt_ids"].as_array().unwrap().len();
        let ids: Vec<String> = case["ids"].as_array().unwrap()[prompt_ids..][..certain]
            .iter()
            .map(ToString::to_string)
            .collect();
        if certain == 0 {
            continue;
        }
        let n = certain.to_string();
        let found = succeed(&[
            "generate", model, "--prompt", prompt, "-n", &n, "--greedy", "--device", "cpu",
        ]);
        let mut arguments = vec!["detokenize", model];
        arguments.extend(ids.iter().map(String::as_str));
        let expected = succeed(&arguments);
        assert_eq!(found.trim(), expected.trim(), "{prompt:?}");
    }
}

#[test]
fn the_seed_determines_the_text() {
    let generate = |seed: &str| {
        succeed(&[
            "generate",
            tiny(),
            "--prompt",
            "Hello",
            "-n",
            "24",
            "--temperature",
            "1.5",
            "--seed",
            seed,
            "--device",
            "cpu",
        ])
    };
    assert_eq!(generate("1"), generate("1"));
    assert_ne!(generate("1"), generate("2"));
}

#[test]
fn the_token_limit_holds() {
    let ran =
        run(&["generate", tiny(), "--prompt", "Hi", "-n", "3", "--greedy", "--device", "cpu"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.err.contains("2 prompt tokens"), "{}", ran.err);
    assert!(
        ["1", "2", "3"].iter().any(|n| ran.err.contains(&format!("; {n} tokens at"))),
        "{}",
        ran.err
    );
}

/// Milliseconds after `name` in a report.
fn millis(report: &str, name: &str) -> f64 {
    let at = report.find(name).unwrap_or_else(|| panic!("no {name:?} in {report}")) + name.len();
    let number = report[at..].trim_start();
    let end = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
    number[..end].parse().unwrap_or_else(|error| panic!("{name} of {report}: {error}"))
}

fn assert_parts(report: &str) {
    let all = millis(report, "first token after");
    let parts = ["waiting", "encoding", "prefill", "decode"].map(|name| millis(report, name));
    // Each is rounded to 0.1 ms.
    assert!((parts.iter().sum::<f64>() - all).abs() < 0.3, "{report}");
    assert!(all > 0.0, "{report}");
}

#[test]
fn the_parts_of_the_first_token_are_reported() {
    let ran =
        run(&["generate", tiny(), "--prompt", "Hi", "-n", "3", "--greedy", "--device", "cpu"]);
    let report = ran.err.lines().find(|line| line.contains("first token after"));
    assert_parts(report.unwrap_or_else(|| panic!("{}", ran.err)));

    let chat = ["chat", tiny(), "-n", "3", "--greedy", "--device", "cpu", "--reasoning", "hide"];
    let times = run_with_input(&[&chat[..], &["--times"]].concat(), "Hello\nHello again\n");
    let reports: Vec<_> = times.err.lines().filter(|line| line.contains("first token")).collect();
    assert_eq!(reports.len(), 2, "{}", times.err);
    reports.iter().for_each(|report| assert_parts(report));
    assert!(
        reports[1].contains(" cached)"),
        "the second prompt begins like the first: {}",
        times.err
    );
    let plain = run_with_input(&chat, "Hello\nHello again\n");
    assert_eq!(plain.out, times.out);
    assert!(!plain.err.contains("first token"), "{}", plain.err);
}

#[test]
fn a_budget_does_not_change_the_text_and_costs_are_saved() {
    let folder = scratch("cache");
    let arguments =
        ["generate", tiny(), "--prompt", "Once", "-n", "12", "--greedy", "--device", "cpu"];
    let with_budget = [&arguments[..], &["--budget", "3.5"]].concat();
    for _ in 0..2 {
        let output = walla(&with_budget).env("XDG_CACHE_HOME", &folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), succeed(&arguments));
    }
    #[cfg(target_os = "linux")]
    assert_eq!(std::fs::read_dir(format!("{folder}/walla")).unwrap().count(), 1);
    for nonsense in ["0", "-1", "NaN", "1e9", "much"] {
        let ran = run(&[&arguments[..], &["--budget", nonsense]].concat());
        assert_eq!(ran.code, Some(2), "{nonsense}: {}", ran.err);
    }
}

/// The device thread, which writes the trace, has ended before the program exits.
#[test]
fn a_trace_is_complete() {
    let path = scratch("trace.json");
    let arguments =
        ["generate", tiny(), "--prompt", "Once", "-n", "8", "--greedy", "--device", "cpu"];
    // The program used to exit while the trace was written, in every seventh run.
    for _ in 0..20 {
        let output = walla(&arguments).env("WALLA_TRACE", &path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let trace = std::fs::read_to_string(&path).unwrap();
        let trace = serde_json::from_str::<serde_json::Value>(&trace).expect("whole JSON");
        let spans = trace.as_array().expect("a list of events").len();
        assert!(spans > 20, "{spans} events");
    }
}

/// `bench` has no engine, and records the stages of its steps.
#[test]
fn a_bench_is_traced() {
    let path = scratch("bench-trace.json");
    let arguments =
        ["bench", tiny(), "--agents", "1", "--context", "8", "--tokens", "4", "--device", "cpu"];
    let output = walla(&arguments).env("WALLA_TRACE", &path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let trace = std::fs::read_to_string(&path).unwrap();
    let trace = serde_json::from_str::<serde_json::Value>(&trace).expect("whole JSON");
    let names: Vec<_> = trace.as_array().unwrap().iter().map(|span| &span["name"]).collect();
    assert!(names.iter().filter(|name| **name == "launch").count() >= 4, "{names:?}");
}

/// Settings of the environment that have no effect are reported, although the command has no
/// subscriber for its log.
#[test]
fn an_environment_without_effect_is_reported() {
    let notes = scratch("notes.txt");
    std::fs::write(&notes, "keep me").unwrap();
    let arguments =
        ["generate", tiny(), "--prompt", "Once", "-n", "2", "--greedy", "--device", "cpu"];
    for (name, value, expected) in [
        ("WALLA_TRACE", &*notes, "no trace file"),
        ("WALLA_TRACE", "/no/such/folder/t.json", "no trace file"),
        ("WALLA_CPU_VARIANT", "nonsense", "no kernels that run here"),
    ] {
        let output = walla(&arguments).env(name, value).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && error.contains(expected), "{name}={value}: {error}");
    }
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "keep me");
}

#[test]
fn chat_answers_each_line_until_the_end_of_input() {
    let arguments =
        ["chat", tiny(), "--persona", "You are Greta.", "-n", "4", "--greedy", "--device", "cpu"];
    let ran = run_with_input(&arguments, "Hello\n\nWho are you?\n");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(ran.err, "");
    // Three prompts were answered or skipped, the fourth reached the end of input.
    assert_eq!(ran.out.matches("> ").count(), 4, "{:?}", ran.out);
}

/// A model that reasons because its template opens a reasoning block. Standard output contains only
/// speech; reasoning is on standard error, if requested.
#[test]
fn chat_keeps_reasoning_off_standard_output() {
    let template =
        "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}<|im_start|><think>\n";
    let dialect = Dialect { template, special: &["<think>", "</think>"] };
    let bytes = synth::write_dialect(&Model::TINY, Mixture::Q8_0, 7, &dialect, Vec::new());
    let model = scratch("reasons.gguf");
    std::fs::write(&model, bytes.unwrap()).unwrap();
    let chat = |more: &[&str]| {
        let arguments = ["chat", &model, "-n", "4", "--temperature", "2", "--device", "cpu"];
        let ran = run_with_input(&[&arguments, more].concat(), "Hello\n");
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        ran
    };
    let five = ["--reasoning-tokens", "5"];
    let quiet = chat(&five);
    assert_eq!(quiet.err, "");
    let shown = chat(&[&five[..], &["--reasoning", "show"]].concat());
    assert_eq!(shown.out, quiet.out);
    assert!(!shown.err.trim().is_empty(), "{shown:?}");
    let none = chat(&["--reasoning-tokens", "0", "--reasoning", "show"]);
    assert_eq!(none.err, "");
    for ran in [&quiet, &shown, &none] {
        assert!(!ran.out.contains("think>"), "{ran:?}");
        assert!(ran.out.len() > "> \n> ".len(), "it speaks: {ran:?}");
    }
    let told = chat(&["--thinking", "on"]);
    assert!(told.err.contains("no switch for reasoning"), "{told:?}");
    for nonsense in [["--thinking", "maybe"], ["--reasoning", "loud"]] {
        let ran = run(&[&["chat", &model][..], &nonsense].concat());
        assert_eq!(ran.code, Some(2), "{}", ran.err);
    }
}

#[test]
fn replies_conform_to_a_constraint_or_the_command_fails() {
    let folder = std::path::PathBuf::from(scratch("constraints"));
    std::fs::create_dir_all(&folder).unwrap();
    let schema = folder.join("schema.json");
    let sold = r#"{"enum": ["nails", "a sword"]}"#;
    std::fs::write(&schema, sold).unwrap();
    let refused = folder.join("refused.json");
    std::fs::write(&refused, r#"{"not": {}}"#).unwrap();
    let grammar = folder.join("grammar.lark");
    std::fs::write(&grammar, "start: \"(\" /[a-c]{3}/ \")\"").unwrap();
    let [schema, refused, grammar] = [&schema, &refused, &grammar].map(|p| p.to_str().unwrap());
    let generate = |flags: &[&str]| {
        let start = ["generate", tiny(), "--prompt", "I sell", "--device", "cpu"];
        run(&[&start[..], flags].concat())
    };
    let ran = generate(&["--json-schema", schema]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(["\"nails\"", "\"a sword\""].contains(&ran.out.trim_end()), "{}", ran.out);
    let ran = generate(&["--choice", "yes,no"]);
    assert!(["yes", "no"].contains(&ran.out.trim_end()) && ran.code == Some(0), "{}", ran.out);
    let ran = generate(&["--regex", "[0-9]{3}"]);
    assert!(ran.out.trim_end().parse::<u32>().is_ok() && ran.code == Some(0), "{}", ran.out);
    let ran = generate(&["--lark", grammar]);
    assert!(ran.out.starts_with('(') && ran.out.trim_end().len() == 5, "{}", ran.out);
    // A reply that a limit cuts is not valid.
    let ran = generate(&["--regex", "a{40}", "-n", "7"]);
    assert_eq!((ran.code, ran.out.trim_end()), (Some(1), "aaaaaaa"), "{}", ran.err);
    assert!(ran.err.contains("the reply is cut"), "{}", ran.err);
    let ran = generate(&["--json-schema", refused]);
    assert_eq!((ran.code, ran.out.trim_end()), (Some(1), ""), "{}", ran.err);
    assert!(ran.err.contains("\"not\""), "{}", ran.err);
    let ran = generate(&["--json-schema", "missing.json"]);
    assert!(ran.code == Some(1) && ran.err.contains("missing.json"), "{}", ran.err);
    assert_eq!(generate(&["--regex", "a", "--choice", "b"]).code, Some(2));
}

#[test]
fn texts_are_scored() {
    let score = |arguments: &[&str], input: &str| {
        let arguments = [&["score", tiny(), "--device", "cpu", "--prompt", "Hello"], arguments];
        run_with_input(&arguments.concat(), input)
    };
    let ran = score(&["--text", " world", "--text", " world!"], "");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let column = |line: &str| line.split_whitespace().next().unwrap().parse::<f64>().unwrap();
    let sums: Vec<f64> = ran.out.lines().map(column).collect();
    assert!(sums.len() == 2 && sums[1] < sums[0] && sums[0] < 0.0, "{}", ran.out);
    assert!(ran.out.lines().all(|line| line.contains("\" world")), "{}", ran.out);

    let ran = score(&["--json", "--lines", "-"], " world\n\n world!\n");
    let lines: Vec<_> = ran.out.lines().map(crate::command::json_line).collect();
    assert_eq!((lines.len(), lines[1]["tokens"].as_u64()), (3, Some(0)), "{}", ran.out);
    assert!((lines[0]["log_probability"].as_f64().unwrap() - sums[0]).abs() < 1e-3);

    assert_eq!(score(&[], "").code, Some(2), "no text");
    let long = "x".repeat(3_000);
    let ran = score(&["--text", &long], "");
    assert!(ran.code == Some(1) && ran.err.contains("tokens, the context "), "{}", ran.err);
}
