//! A published model against llama.cpp: Gemma 3 270M in Q4_K_M. `cargo xtask real-model` fetches
//! the file and runs these tests; `WALLA_REAL_MODEL` names a file, `WALLA_TEST_DEVICE` a GPU.
//!
//! `real_models/gemma3_270m.json` has the expected values, `real_models/llama_reference.py` made
//! them.

use std::path::{Path, PathBuf};

use serde_json::Value;
use walla_cpu::{CpuDevice, CpuOptions};
use walla_cuda::CudaBackend;
use walla_device::{Backend, Device, KvType, OpenOptions};
use walla_exec::Evaluator;
use walla_model::Gguf;
use walla_model::tokenizer::{EncodeOptions, Tokenizer};
use walla_types::{SeqId, TokenId};

const EXPECTED: &str = include_str!("../real_models/gemma3_270m.json");
const TEXT: &str = include_str!("../real_models/text.txt");

/// Both engines round activations and cache, so their logits differ. A distance of the best two
/// logits below this is a near-tie.
const NEAR_TIE: f64 = 0.25;

struct Real {
    tokenizer: Tokenizer,
    evaluator: Evaluator,
    expected: Value,
}

fn path() -> PathBuf {
    let fetched =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../target/walla_models/gemma-3-270m-q4_k_m.gguf");
    std::env::var_os("WALLA_REAL_MODEL").map_or_else(|| Path::new(fetched).into(), PathBuf::from)
}

fn device() -> Box<dyn Device> {
    match std::env::var("WALLA_TEST_DEVICE") {
        Ok(name) => {
            CudaBackend::from_env().open(&name, &OpenOptions::default()).expect("the GPU opens")
        }
        Err(_) => {
            let options = CpuOptions { threads: Some(2), ..CpuOptions::default() };
            Box::new(CpuDevice::new(options).expect("supported here"))
        }
    }
}

fn open() -> Real {
    let path = path();
    let file = Gguf::open(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; `cargo xtask real-model` fetches it", path.display())
    });
    Real {
        tokenizer: Tokenizer::from_gguf(&file).expect("a vocabulary"),
        evaluator: walla_tests::evaluator(&file, device(), 1, 1_024, 64, KvType::F16),
        expected: serde_json::from_str(EXPECTED).expect("JSON"),
    }
}

fn ids(value: &Value) -> Vec<TokenId> {
    let numbers = value.as_array().into_iter().flatten().filter_map(Value::as_u64);
    numbers.map(|id| TokenId(id as u32)).collect()
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<TokenId> {
    let options = EncodeOptions { add_special: true, ..EncodeOptions::default() };
    tokenizer.encode(text, options).expect("short")
}

/// Evaluates a sequence and calls `each` with every position and its logits.
fn evaluate(evaluator: &mut Evaluator, ids: &[TokenId], mut each: impl FnMut(usize, &[f32])) {
    let sink = &mut |_: usize, position: usize, row: &[f32]| each(position, row);
    evaluator.append(&[(SeqId(0), ids)], sink).expect("it fits");
    evaluator.sequences().remove(SeqId(0)).expect("it lives");
}

#[test]
#[ignore = "needs a downloaded model: cargo xtask real-model"]
fn greedy_tokens_are_llama_cpps_except_at_near_ties() {
    let Real { tokenizer, mut evaluator, expected } = open();
    let (mut tokens, mut other) = (0, Vec::new());
    for case in expected["greedy"].as_array().expect("cases") {
        let prompt = case["prompt"].as_str().expect("a text");
        let (mut sequence, wanted) = (ids(&case["ids"]), ids(&case["continuation"]));
        assert_eq!(encode(&tokenizer, prompt), sequence, "{prompt}");
        assert_eq!(Some(tokenizer.decode(&wanted).expect("text").as_str()), case["text"].as_str());
        let (first, gaps) = (sequence.len() - 1, case["gaps"].as_array().expect("numbers"));
        sequence.extend(&wanted);
        // Each token follows llama.cpp's own tokens: a difference does not hide later ones.
        evaluate(&mut evaluator, &sequence, |position, row| {
            let Some(step) = position.checked_sub(first).filter(|step| *step < wanted.len()) else {
                return;
            };
            tokens += 1;
            let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0);
            let behind = row[best] - row[wanted[step].0 as usize];
            if best == wanted[step].0 as usize {
                return;
            }
            let gap = gaps[step].as_f64().unwrap_or(f64::MAX);
            other.push(format!("{prompt}, token {step}: {behind:.4} here, {gap:.4} in llama.cpp"));
            assert!(gap < NEAR_TIE && f64::from(behind) < NEAR_TIE, "{other:?}");
        });
    }
    assert_eq!(tokens, 3 * 64);
    println!("{tokens} tokens, {} differ at near-ties: {other:#?}", other.len());
}

#[test]
#[ignore = "needs a downloaded model: cargo xtask real-model"]
fn perplexity_is_within_half_a_percent_of_llama_cpps() {
    let Real { tokenizer, mut evaluator, expected } = open();
    let expected = &expected["text"];
    let encoded = encode(&tokenizer, TEXT);
    let (bos, ids) = encoded.split_first().expect("BOS");
    assert_eq!(Some(ids.len() as u64), expected["tokens"].as_u64());
    let window = expected["window"].as_u64().expect("a number") as usize;
    let mut loss = 0.0;
    for ids in ids.chunks(window) {
        let sequence = [&[*bos], ids].concat();
        evaluate(&mut evaluator, &sequence, |position, row| {
            let Some(next) = sequence.get(position + 1) else { return };
            let largest = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = row.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
            loss += sum.ln() - f64::from(row[next.0 as usize] - largest);
        });
    }
    let perplexity = (loss / ids.len() as f64).exp();
    let llama = expected["perplexity"].as_f64().expect("a number");
    println!("perplexity {perplexity:.4}, llama.cpp {llama:.4}");
    assert!((perplexity / llama - 1.0).abs() < 0.005, "{perplexity} and {llama}");
}
