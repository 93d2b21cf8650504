//! The verbs for files: inspect, tokenize, detokenize, devices.

use serde_json::Value;
use walla_types::TensorType;

use crate::command::{json_line, reference, reference_json, run, scratch, succeed, tiny, walla};

#[test]
fn inspect_prints_the_content_of_a_file() {
    let report = json_line(&succeed(&["inspect", tiny(), "--json"]));
    assert_eq!(report["metadata"]["general.architecture"], "qwen3");
    assert_eq!(report["spec"]["architecture"], "qwen3");
    assert_eq!(report["spec"]["layers"], 2);
    assert_eq!(report["spec"]["vocab"], 300);
    // 2 layers of 2 heads of 16 numbers, keys and values, 2 bytes each.
    assert_eq!(report["spec"]["kv_bytes_per_token_f16"], 2 * 2 * 2 * 16 * 2);
    assert_eq!(report["tokenizer"]["model"], "gpt2");
    assert_eq!(report["tokenizer"]["pre"], "qwen2");
    assert_eq!(report["tokenizer"]["tokens"], 300);
    assert_eq!(report["chat_template"]["present"], true);
    let list = report["tensors"]["list"].as_array().unwrap();
    assert_eq!(report["tensors"]["count"], list.len());
    let sum = |values: &mut dyn Iterator<Item = &Value>| -> u64 {
        values.map(|value| value["bytes"].as_u64().unwrap()).sum()
    };
    let types = report["tensors"]["types"].as_object().unwrap();
    assert!(types.contains_key("Q8_0") && types.contains_key("F32"), "{types:?}");
    assert_eq!(sum(&mut types.values()), sum(&mut list.iter()));
}

#[test]
fn inspect_prints_readable_text_without_json() {
    let text = succeed(&["inspect", tiny()]);
    for part in [
        "general.architecture",
        "qwen3",
        "Q8_0",
        "token_embd.weight",
        "kv_bytes_per_token_f16: 256",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

#[test]
fn tokens_are_a_json_array_on_one_line() {
    let model = tiny();
    // The synthetic vocabulary begins with its bytes: GPT-2's letters for them are tokens 0 to 255.
    assert_eq!(succeed(&["tokenize", model, "Az"]), "[65,122]\n");
    assert_eq!(succeed(&["tokenize", model, ""]), "[]\n");
    assert_eq!(succeed(&["tokenize", model, "-x"]), "[45,120]\n");
    assert_eq!(succeed(&["detokenize", model, "65", "122"]), "Az\n");
    assert_eq!(succeed(&["detokenize", model, "65,122"]), "Az\n");
}

#[test]
fn special_tokens_are_parsed_on_request() {
    let model = tiny();
    let plain = json_line(&succeed(&["tokenize", model, "<|im_end|>"]));
    assert_eq!(plain.as_array().unwrap().len(), "<|im_end|>".len());
    assert_eq!(succeed(&["tokenize", model, "--special", "<|im_end|>"]), "[299]\n");
    // A control token has no visible text.
    assert_eq!(succeed(&["detokenize", model, "299", "65"]), "A\n");
}

#[test]
fn text_of_a_file_is_not_changed() {
    let path = scratch("text.txt");
    std::fs::write(&path, "A\r\n猫 \n").unwrap();
    let model = tiny();
    let ids = json_line(&succeed(&["tokenize", model, "--file", &path]));
    let expected: Vec<u8> = "A\r\n猫 \n".bytes().collect();
    assert_eq!(ids, serde_json::json!(expected));
    let ids: Vec<String> = expected.iter().map(u8::to_string).collect();
    let mut arguments = vec!["detokenize", model];
    arguments.extend(ids.iter().map(String::as_str));
    assert_eq!(succeed(&arguments), "A\r\n猫 \n\n");
}

/// The reference cases through the command, both flags among them.
#[test]
fn tokens_match_the_reference() {
    for name in ["llama32-q4_0", "qwen2-q8_0", "tinystories-260k"] {
        let model = reference(&format!("models/{name}.gguf"));
        let json = reference_json(&format!("models/{name}.json"));
        for case in json["tokenize"].as_array().unwrap() {
            let mut arguments = vec!["tokenize", model.to_str().unwrap()];
            arguments.extend(case["parse_special"].as_bool().unwrap().then_some("--special"));
            arguments.extend(case["add_special"].as_bool().unwrap().then_some("--bos"));
            arguments.push(case["text"].as_str().unwrap());
            if arguments.iter().any(|argument| argument.contains('\0')) {
                continue; // too long for a command line
            }
            assert_eq!(json_line(&succeed(&arguments)), case["ids"], "{arguments:?}");
        }
    }
}

#[test]
fn devices_lists_the_cpu() {
    let list = json_line(&succeed(&["devices", "--json"]));
    let cpu = list.as_array().unwrap().iter().find(|device| device["name"] == "cpu");
    let cpu = cpu.unwrap_or_else(|| panic!("no cpu in {list}"));
    assert_eq!(cpu["kind"], "cpu");
    assert_eq!(cpu["variant"], "scalar", "WALLA_CPU_VARIANT is heard");
    assert!(cpu["threads"].as_u64().unwrap() >= 1);
    assert!(cpu["memory_total_bytes"].as_u64().unwrap() > 0);
    assert!(cpu["programs"].is_null(), "only an open device has programs");
    let text = succeed(&["devices"]);
    assert!(text.lines().any(|line| line.starts_with("cpu: ")), "{text}");
}

#[test]
#[cfg(feature = "demo")]
fn an_open_device_reports_how_it_runs_programs() {
    let list = json_line(&succeed(&["devices", "-v", "--json"]));
    let cpu = list.as_array().unwrap().iter().find(|device| device["name"] == "cpu").unwrap();
    assert!(cpu["programs"]["graphs"].as_u64().unwrap() > 0, "{cpu}");
    assert_eq!(cpu["programs"]["op_by_op"], serde_json::json!([]));
    assert_eq!(cpu["programs"]["graph_fallbacks"]["capture failed"], 0);
    let text = succeed(&["devices", "-v"]);
    assert!(text.contains("are graphs, 0 are launched op by op (none)"), "{text}");
}

#[test]
#[cfg(feature = "demo")]
fn the_self_test_compares_the_cpu_with_its_exact_kernels() {
    let arguments = ["devices", "--self-test", "--device", "cpu"];
    // The best kernels of this machine, which round to 8 bits.
    let report =
        walla(&[&arguments[..], &["--json"]].concat()).env("WALLA_CPU_VARIANT", "").output();
    let report = report.unwrap();
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let [cpu] = report["devices"].as_array().unwrap().as_slice() else { panic!("{report}") };
    assert_eq!((&cpu["name"], &cpu["result"]), (&"cpu".into(), &"passed".into()));
    let difference = cpu["values"]["largest difference of types"].as_f64().unwrap();
    assert!(difference > 0.0 || cpu["variant"] == "scalar", "{report}");
    let types = cpu["values"]["types"].as_str().unwrap();
    assert_eq!(types.split(' ').count(), TensorType::ALL.len(), "{types}");
    // The exact kernels themselves, as text.
    let text = succeed(&arguments);
    for line in ["largest difference of types: 0.0", "same drawn tokens, q8: 64 of 64"] {
        assert!(text.lines().any(|its| its.trim() == line), "{line} in {text}");
    }
    assert!(text.contains("result: passed"), "{text}");
    let ran = run(&["devices", "--self-test", "--device", "cuda:77"]);
    assert!(ran.code == Some(1) && ran.err.contains("no device \"cuda:77\""), "{}", ran.err);
}

#[walla_reference_test::vulkan_test]
#[cfg(all(feature = "demo", feature = "vulkan"))]
fn the_self_test_compares_a_vulkan_device_with_the_cpu() {
    let text = succeed(&["devices", "--self-test", "--device", "vulkan:0"]);
    assert!(text.contains("vulkan:0: ") && text.contains("API version: "), "{text}");
    assert!(text.contains("result: passed"), "{text}");
}

#[walla_reference_test::vulkan_test]
#[cfg(feature = "vulkan")]
fn an_open_vulkan_device_lists_its_features() {
    let list = json_line(&succeed(&["devices", "-v", "--json"]));
    let gpu = list.as_array().unwrap().iter().find(|device| device["name"] == "vulkan:0").unwrap();
    for fact in ["API version", "driver", "lanes of a subgroup", "queue family"] {
        assert!(gpu["facts"][fact].is_string(), "{fact} in {gpu}");
    }
    let features = ["features used", "features not used"].map(|list| &gpu["facts"][list]);
    assert!(features.iter().any(|list| list.as_str().unwrap().contains("dot")), "{gpu}");
    assert!(gpu["failure"].is_null() && gpu["programs"]["graphs"].as_u64() > Some(0), "{gpu}");
    assert!(succeed(&["devices", "-v"]).contains("\n  features not used: "));
    assert!(!succeed(&["devices"]).contains("features not used"));
}

#[test]
fn help_lists_all_verbs() {
    let help = succeed(&["--help"]);
    for verb in
        ["inspect", "tokenize", "detokenize", "logits", "generate", "chat", "bench", "devices"]
    {
        assert!(help.contains(verb), "{verb} in {help}");
        assert!(succeed(&[verb, "--help"]).contains("Usage"), "{verb}");
    }
    assert!(succeed(&["--version"]).starts_with("walla "));
    // Without a verb: the same, as an error.
    let ran = run(&[]);
    assert!(ran.code.is_some_and(|code| code != 0) && ran.err.contains("Usage"));
}
