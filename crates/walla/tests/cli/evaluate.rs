//! `walla evaluate`: its card of the demo model, and its refusals.

use std::process::Stdio;

use serde_json::Value;

use crate::command::{run, scratch, tiny, walla};
use crate::templates::with_template;

/// The parts with the fewest replies: an evaluation of everything takes too long without
/// optimisation.
#[test]
#[cfg(feature = "demo")]
fn a_card_has_counts_failures_and_speed() {
    let path = scratch("card.json");
    let mut command =
        walla(&["evaluate", "--parts", "speed,actions,constraints,refusals", "--json", &path]);
    // The kernels of this machine: counts are compared with ranges.
    let output = command.env_remove("WALLA_CPU_VARIANT").output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{err}");
    assert!(err.contains("walla: actions, Required, 14 replies"), "{err}");
    let card: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let model = &card["model"];
    assert_eq!((&model["calls"], &model["file"]), (&"HermesJson".into(), &"demo".into()));
    let section = |name: &str| {
        let sections = card["sections"].as_array().unwrap();
        sections.iter().find(|section| section["name"] == name).unwrap().clone()
    };
    let required = section("actions, Required");
    assert_eq!(required["of"], 14);
    // The demo model has learned other actions.
    assert!(required["right"].as_u64().unwrap() >= 1, "{required:#}");
    assert_eq!(required["others"]["spoken"], 0);
    let wrong = 14 - required["right"].as_u64().unwrap();
    assert_eq!(required["failures"].as_array().unwrap().len() as u64, wrong);
    let constraints = section("constraints, conforming");
    assert_eq!(constraints["right"], constraints["of"], "{constraints:#}");
    let complete = constraints["of"].as_u64().unwrap();
    assert_eq!(complete + constraints["others"]["cut_off_by_a_limit"].as_u64().unwrap(), 20);
    assert_eq!(section("refusals, secret kept")["of"], 5);
    let speed = &card["speed"];
    assert!(speed["rates"][1]["tokens_per_second"].as_f64().unwrap() > 0.0);
    let [cold, warm] =
        ["cold", "warm"].map(|name| speed["first_words"][name]["prompt_tokens"].as_u64());
    assert!(warm > cold && cold > Some(0), "{speed:#}");
    let table = String::from_utf8(output.stdout).unwrap();
    for part in ["demo: ", "tokens/s with 8 agents", "actions, Required", "expected"] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
#[cfg(all(feature = "demo", feature = "minilm"))]
fn the_demo_model_answers_from_its_memory() {
    let path = scratch("memory.json");
    let mut command = walla(&["evaluate", "--parts", "memory", "--json", &path]);
    let output = command.env_remove("WALLA_CPU_VARIANT").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let card: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let own = &card["sections"][0];
    assert!(own["of"] == 36 && own["right"].as_u64().unwrap() >= 30, "{own:#}");
    assert!(card["speed"].is_null());
}

#[test]
fn a_closed_output_does_not_cost_the_measurements() {
    let path = scratch("closed.json");
    let mut command = walla(&["evaluate", "--parts", "refusals", "--json", &path]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    child.wait().unwrap();
    let card: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(card["sections"].is_array());
}

#[test]
fn a_model_without_a_template_and_an_input_as_output_are_refused() {
    let deaf = with_template("evaluated.gguf", "{{ bos_token }}");
    let refused = run(&["evaluate", &deaf]);
    assert_eq!((refused.code, &*refused.out), (Some(1), ""), "{refused:?}");
    assert!(refused.err.contains("--template chatml"), "{refused:?}");
    let refused = run(&["evaluate", tiny(), "--json", tiny()]);
    assert!(refused.err.contains("would overwrite an input"), "{refused:?}");
    let refused = run(&["evaluate", &scratch("absent.gguf")]);
    assert!(refused.code == Some(1) && refused.err.contains("absent.gguf"), "{refused:?}");
}
