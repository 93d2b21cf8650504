//! `walla embed`, and embedding models in other verbs.

use serde_json::Value;

use crate::command::{reference, run, run_with_input, succeed};

fn model(name: &str) -> String {
    format!("{}/../walla_embed/tests/data/{name}.gguf", env!("CARGO_MANIFEST_DIR"))
}

fn lines(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn vectors_are_lines_in_the_order_of_the_texts() {
    for name in ["bert-mean-f32", "qwen3-last"] {
        let found = lines(&succeed(&["embed", &model(name), "the king", "", "rain"]));
        let texts: Vec<_> = found.iter().map(|line| line["text"].as_str().unwrap()).collect();
        assert_eq!(texts, ["the king", "", "rain"]);
        for line in &found {
            let vector = line["vector"].as_array().unwrap();
            let length: f64 = vector.iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
            assert!(vector.len() == 32 && (length - 1.0).abs() < 1e-5);
        }
    }
}

#[test]
fn lines_of_standard_input_are_texts() {
    let text = "a\n\nthe night\r\nthe end";
    let ran = run_with_input(&["embed", &model("bert-mean-f32"), "first", "-"], text);
    let texts: Vec<String> =
        lines(&ran.out).iter().map(|line| line["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(texts, ["first", "a", "", "the night", "the end"]);
}

#[test]
fn similarities_are_a_matrix_of_cosines() {
    let arguments = ["embed", "--similarity", &model("bert-mean-f32"), "a b", "a b", "the king"];
    let out = succeed(&arguments);
    let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..2], ["1.000", "1.000"]);
    assert_eq!((rows[0][2], rows[2][2], rows.len()), (rows[2][0], "1.000", 3));
    assert_eq!(rows[2][3..], ["the", "king"]);
}

#[test]
fn long_texts_are_reported_or_refused() {
    let (file, long) = (model("bert-mean-f32"), "night ".repeat(100));
    let ran = run(&["embed", &file, &long]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.err.contains("text 1 was cut to 48 tokens"), "{}", ran.err);
    assert_eq!(lines(&ran.out)[0]["cut"], Value::Bool(true));
    let ran = run(&["embed", "--refuse-long", &file, "a", &long]);
    assert!(ran.code == Some(1) && ran.err.contains("text 2 has 102 tokens, at most 48"));
}

#[test]
fn other_verbs_say_that_it_is_an_embedding_model() {
    let file = model("bert-mean-f32");
    let calls: [&[&str]; 3] =
        [&["chat", &file], &["generate", &file, "--prompt", "x"], &["bench", &file]];
    for call in calls {
        let ran = run(call);
        assert_eq!(ran.code, Some(1), "{call:?}");
        assert!(ran.err.contains("computes embeddings") && ran.err.contains("walla embed"));
    }
    let report: Value = serde_json::from_str(&succeed(&["inspect", "--json", &file])).unwrap();
    let spec = &report["spec"];
    assert_eq!((&spec["pooling"], &spec["dimensions"]), (&"mean".into(), &32.into()));
    assert_eq!(report["tokenizer"]["model"], "bert");
}

#[test]
fn a_model_without_pooling_is_refused_unless_it_is_named() {
    let file = reference("models/qwen3-f16.gguf");
    let file = file.to_str().unwrap();
    let ran = run(&["embed", file, "a"]);
    assert!(ran.code == Some(1) && ran.err.contains("--pooling mean"), "{}", ran.err);
    let ran = run(&["embed", "--pooling", "mean", file, "a"]);
    assert!(ran.code == Some(1) && ran.err.contains("only the last"), "{}", ran.err);
    assert_eq!(lines(&succeed(&["embed", "--pooling", "last", file, "a"])).len(), 1);
}
