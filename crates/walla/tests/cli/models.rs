//! `walla logits` and `walla bench`.

use serde_json::Value;

use crate::command::{json_line, reference, reference_json, run, scratch, succeed, tiny};

/// Little-endian f32.
fn numbers(bytes: &[u8]) -> Vec<f32> {
    let (numbers, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    numbers.iter().copied().map(f32::from_le_bytes).collect()
}

/// The logits of sequences, evaluated as one batch.
fn logits(model: &str, sequences: &[&[u64]], out: &str, more: &[&str]) -> (Value, Vec<f32>) {
    let lists: Vec<String> = sequences
        .iter()
        .map(|ids| ids.iter().map(u64::to_string).collect::<Vec<_>>().join(","))
        .collect();
    let mut arguments = vec!["logits", model, "--out", out, "--device", "cpu"];
    arguments.extend(lists.iter().flat_map(|list| ["--tokens", list]));
    arguments.extend(more);
    let shape = json_line(&succeed(&arguments));
    (shape, numbers(&std::fs::read(out).unwrap()))
}

#[test]
fn rows_of_the_first_sequence_come_first() {
    let model = tiny();
    let sequences: [&[u64]; 3] = [&[1, 2, 3], &[9], &[4, 5, 6, 7]];
    let (shape, all) = logits(model, &sequences, &scratch("all.f32"), &[]);
    assert_eq!((&shape["rows"], &shape["cols"]), (&8.into(), &300.into()));
    assert_eq!(shape["sequences"], serde_json::json!([3, 1, 4]));
    assert_eq!(all.len(), 8 * 300);
    let mut row = 0;
    for sequence in sequences {
        let (_, alone) = logits(model, &[sequence], &scratch("alone.f32"), &[]);
        let end = row + sequence.len();
        assert_eq!(all[row * 300..end * 300], alone, "{sequence:?} in a batch and alone");
        row = end;
    }
}

/// Longer than a step of the device: the sequence is evaluated in chunks.
#[test]
fn a_long_sequence_has_all_rows() {
    let ids: Vec<u64> = (0..200).map(|index| index % 256).collect();
    let (_, whole) = logits(tiny(), &[&ids], &scratch("whole.f32"), &["--kv", "f32"]);
    let (_, head) = logits(tiny(), &[&ids[..70]], &scratch("head.f32"), &["--kv", "f32"]);
    assert_eq!(whole.len(), 200 * 300);
    let apart = whole.iter().zip(&head).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 1e-4, "{apart}");
}

/// The reference's logits, within the tolerance of the scalar kernels, which round only the
/// weights.
#[test]
fn logits_match_the_reference() {
    for name in ["llama32-q4_k", "qwen3-f16", "gemma3-q8_0", "lfm2-q8_0"] {
        let model = reference(&format!("models/{name}.gguf"));
        let json = reference_json(&format!("models/{name}.json"));
        let truth = std::fs::read(reference(&format!("models/{name}.logits.f32"))).unwrap();
        let truth = numbers(&truth);
        let vocab = json["n_vocab"].as_u64().unwrap() as usize;
        let short = json["sequences"].as_array().unwrap().iter();
        let short: Vec<&Value> =
            short.filter(|s| s["id"] != "long" && s["n_ctx"].is_u64()).collect();
        let tokens: Vec<Vec<u64>> = short
            .iter()
            .map(|s| {
                s["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
            })
            .collect();
        let sequences: Vec<&[u64]> = tokens.iter().map(Vec::as_slice).collect();
        let out = scratch(&format!("{name}.f32"));
        let (_, found) = logits(model.to_str().unwrap(), &sequences, &out, &["--kv", "f32"]);
        let max_abs = json["tolerance"]["rounded"]["max_abs"].as_f64().unwrap() as f32;
        let mut first = 0;
        for (sequence, tokens) in short.iter().zip(&tokens) {
            let first_row = sequence["first_row"].as_u64().unwrap() as usize;
            for (k, kept) in sequence["kept"].as_array().unwrap().iter().enumerate() {
                let row = first + kept.as_u64().unwrap() as usize;
                let expected = &truth[(first_row + k) * vocab..][..vocab];
                let found = &found[row * vocab..][..vocab];
                let apart =
                    expected.iter().zip(found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(apart <= max_abs, "{name} {}: {apart} > {max_abs}", sequence["id"]);
            }
            first += tokens.len();
        }
    }
}

#[test]
fn bench_prints_a_table_and_writes_the_same_numbers() {
    let path = scratch("bench.json");
    let table = succeed(&[
        "bench",
        tiny(),
        "--agents",
        "1,3",
        "--context",
        "8",
        "--tokens",
        "4",
        "--prefill-rows",
        "3",
        "--holes",
        "--kv",
        "q8",
        "--device",
        "cpu",
        "--threads",
        "1",
        "--json",
        &path,
    ]);
    for word in [
        "agents",
        "p50 ms",
        "mean ms",
        "p10 ms",
        "p90 ms",
        "tokens/s",
        "prefill tok/s",
        "of floor",
        "read 3 tokens a step",
        "loaded in",
        "cpu",
    ] {
        assert!(table.contains(word), "{word:?} in {table}");
    }
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(
        rows.iter().map(|row| &row["agents"]).collect::<Vec<_>>(),
        [&Value::from(1), &Value::from(3)]
    );
    for row in rows {
        for key in [
            "step_ms_p50",
            "step_ms_mean",
            "step_ms_p99",
            "awaited_ms_p50",
            "device_ms_p50",
            "submit_us_p50",
            "tokens_per_second",
            "prefill_tokens_per_second",
            "share_of_floor",
        ] {
            let number = row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row}"));
            assert!(number.is_finite() && number > 0.0, "{key} is {number}");
        }
        assert!(row["step_ms_p50"].as_f64() <= row["step_ms_p99"].as_f64());
        let shown = format!("{:.3}", row["step_ms_p50"].as_f64().unwrap());
        assert!(table.contains(&shown), "{shown} in {table}");
    }
    let holes = &report["holes"][0];
    assert!(holes["step_ms_0123"].as_f64() > Some(0.0) && holes["step_ms_0134"].is_number());
    assert_eq!(report["device"]["threads"], 1);
    assert_eq!(report["kv"], "q8");
    assert_eq!(report["prefill_rows"], 3);
    assert!(report["load_seconds"][0].as_f64() > Some(0.0));
}

#[test]
fn fit_reports_memory_and_measured_steps() {
    let ran = run(&["fit", tiny(), tiny(), "--device", "cpu", "--context", "96", "--json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let reports: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(reports.as_array().map(Vec::len), Some(2));
    let report = &reports[0];
    assert_eq!((&report["fits"], &report["agents"]), (&true.into(), &64.into()));
    let number = |key: &str| report[key].as_u64().unwrap();
    // 64 agents of six pages, and the reserved page; the CPU also keeps recent tokens.
    let pages = number("kv_bytes_per_token") * 16 * (64 * 6 + 1);
    assert!((pages..pages + 400_000).contains(&number("cache_bytes")), "{report}");
    assert!(number("weight_bytes") > 10_000 && number("workspace_bytes") > 1_000, "{report}");
    let steps = report["steps"].as_array().unwrap();
    let agents: Vec<_> = steps.iter().map(|step| step["agents"].as_u64().unwrap()).collect();
    assert_eq!(agents, [1, 8, 64]);
    assert!(steps.iter().all(|step| step["step_ms"].as_f64().unwrap() > 0.0), "{report}");
    // As text.
    let text =
        ["fit", tiny(), "--device", "cpu", "--agents", "3", "--context", "64", "--budget", "500"];
    let text = succeed(&text);
    assert!(text.contains("with 500.00 ms a frame at 60 fps"), "{text}");
    assert_eq!(text.matches("a step in every frame").count(), 2, "{text}");
    // A cache that exceeds every machine's memory: a report, not a failure.
    let large = ["fit", tiny(), "--device", "cpu", "--agents", "4096", "--context", "1000000"];
    let large = succeed(&large);
    assert!(large.contains("does not fit: "), "{large}");
    // Without a device, the ones that could be chosen.
    let devices = succeed(&["fit", tiny(), "--agents", "1", "--context", "64"]);
    let list = devices.lines().find(|line| line.starts_with("devices of this machine")).unwrap();
    assert!(list.contains("cpu"), "{list}");
}
