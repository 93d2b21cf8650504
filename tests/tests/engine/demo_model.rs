//! The model that is included in walla: its logits match the logits of the training code, and its
//! replies are fixed word for word.

use std::time::{Duration, Instant};

use serde_json::Value;
use walla_cpu::{CpuBackend, CpuDevice, CpuOptions, Variant};
use walla_device::{KvType, Registry};
use walla_exec::Evaluator;
use walla_model::Gguf;
use walla_model::chat::{ChatTemplate, Message, RenderOptions, Role};
use walla_model::tokenizer::Tokenizer;
use walla_runtime::{
    AgentSpec, Command, Engine, EngineOptions, ModelSource, Pacing, Prompt, ReplyEvent,
};
use walla_types::{Sampling, SeqId, TokenId};

/// 100 prompts with the next token's logits as computed by PyTorch in float32.
const PARITY: &str = include_str!("../../../crates/walla_demo_model/tests/parity.json");

struct Reference {
    ids: Vec<TokenId>,
    top_ids: Vec<usize>,
    top_logits: Vec<f32>,
    mean: f32,
    norm: f32,
    messages: Vec<(Role, String)>,
}

fn references() -> Vec<Reference> {
    let json: Value = serde_json::from_str(PARITY).expect("JSON");
    let numbers = |value: &Value| -> Vec<f64> {
        value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
    };
    let message = |message: &Value| {
        let role = match message["role"].as_str() {
            Some("system") => Role::System,
            Some("assistant") => Role::Assistant,
            _ => Role::User,
        };
        (role, message["content"].as_str().unwrap_or_default().to_owned())
    };
    let reference = |prompt: &Value| Reference {
        ids: numbers(&prompt["ids"]).into_iter().map(|id| TokenId(id as u32)).collect(),
        top_ids: numbers(&prompt["top_ids"]).into_iter().map(|id| id as usize).collect(),
        top_logits: numbers(&prompt["top_logits"]).into_iter().map(|l| l as f32).collect(),
        mean: prompt["mean"].as_f64().unwrap_or_default() as f32,
        norm: prompt["norm"].as_f64().unwrap_or_default() as f32,
        messages: prompt["messages"].as_array().into_iter().flatten().map(message).collect(),
    };
    json["prompts"].as_array().into_iter().flatten().map(reference).collect()
}

fn file() -> Gguf {
    Gguf::from_static(walla_demo_model::GGUF).expect("the shipped file is valid")
}

fn evaluator(variant: Variant, kv_type: KvType) -> Evaluator {
    let cpu = CpuOptions { variant: Some(variant), threads: Some(2), ..CpuOptions::default() };
    let device = Box::new(CpuDevice::new(cpu).expect("supported here"));
    walla_tests::evaluator(&file(), device, 1, 2_048, 64, kv_type)
}

fn last_logits(evaluator: &mut Evaluator, ids: &[TokenId]) -> Vec<f32> {
    let mut last = Vec::new();
    let sink = &mut |_: usize, position: usize, row: &[f32]| {
        if position + 1 == ids.len() {
            last = row.to_vec();
        }
    };
    evaluator.append(&[(SeqId(0), ids)], sink).expect("it fits");
    evaluator.sequences().remove(SeqId(0)).expect("it lives");
    last
}

fn best(row: &[f32]) -> usize {
    row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(token, _)| token)
}

#[test]
fn prompts_are_encoded_as_in_training() {
    let file = file();
    let tokenizer = Tokenizer::from_gguf(&file).expect("valid");
    let template = ChatTemplate::from_gguf(&file).expect("valid").expect("it has one");
    for reference in references() {
        let messages: Vec<_> =
            reference.messages.iter().map(|(role, content)| Message::new(*role, content)).collect();
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let prompt = template.render(&messages, &options).expect("it renders");
        assert_eq!(tokenizer.encode_prompt(&prompt).expect("short"), reference.ids);
    }
}

/// The trained weights are exactly representable in Q8_0, so the shipped file computes the same
/// function as the float32 model. Every eighth prompt, because the scalar variant is slow; all 100
/// agree, too.
#[test]
fn the_scalar_variant_computes_what_training_computed() {
    let references = references();
    assert_eq!(references.len(), 100);
    let mut evaluator = evaluator(Variant::Scalar, KvType::F32);
    for reference in references.into_iter().step_by(8) {
        let row = last_logits(&mut evaluator, &reference.ids);
        assert_eq!(best(&row), reference.top_ids[0]);
        for (&token, &logit) in reference.top_ids.iter().zip(&reference.top_logits) {
            assert!((row[token] - logit).abs() <= 1e-3, "{} and {logit}", row[token]);
        }
        let mean = row.iter().sum::<f32>() / row.len() as f32;
        let norm = row.iter().map(|l| l * l).sum::<f32>().sqrt();
        assert!((mean - reference.mean).abs() <= 1e-3 && (norm - reference.norm).abs() <= 2e-2);
    }
}

/// A change of kernels or of the order of a sum changes them on every platform: write the new bits
/// here. On one platform only, something depends on its compiler or its C library.
#[test]
fn logits_have_the_same_bits_on_every_platform() {
    let bits = |variant| {
        let mut evaluator = evaluator(variant, KvType::F32);
        let rows = references().into_iter().step_by(40).map(|its| its.ids);
        let rows: Vec<f32> = rows.flat_map(|ids| last_logits(&mut evaluator, &ids)).collect();
        // FNV-1a.
        let mix = |hash: u64, bits: u32| (hash ^ u64::from(bits)).wrapping_mul(0x100_0000_01b3);
        rows.iter().map(|logit| logit.to_bits()).fold(0xcbf2_9ce4_8422_2325, mix)
    };
    let known = [
        (Variant::Scalar, 12_972_517_106_722_584_887),
        (Variant::Avx2Fma, 14_797_053_897_705_631_914),
        (Variant::Avx512Vnni, 14_797_053_897_705_631_914),
        (Variant::Neon, 14_797_053_897_705_631_914),
        (Variant::NeonI8mm, 14_797_053_897_705_631_914),
    ];
    let known = known.into_iter().filter(|known| known.0.score().is_some());
    let (variants, expected): (Vec<_>, Vec<u64>) = known.unzip();
    assert_eq!(variants.iter().map(|variant| bits(*variant)).collect::<Vec<_>>(), expected);
}

/// Activations of 8 bits may decide a near-tie differently: six of the prompts have two best tokens
/// whose logits differ by less than 0.04.
#[test]
fn the_fast_variant_ranks_the_same_token_first_except_in_near_ties() {
    let references = references();
    let mut evaluator = evaluator(Variant::best(), KvType::F16);
    let mut agree = 0;
    for reference in &references {
        let token = best(&last_logits(&mut evaluator, &reference.ids));
        let place = reference.top_ids.iter().position(|&id| id == token).expect("a likely token");
        let gap = reference.top_logits[0] - reference.top_logits[place];
        assert!(gap <= 0.15, "token {token} is {gap} below the best");
        agree += u32::from(place == 0);
    }
    assert!(agree >= 95, "{agree} of 100");
}

/// Greedy replies of the scalar variant. After a new training, run the test, read the replies, and
/// copy them here if they are sensible.
#[test]
fn greedy_replies_match_the_golden_ones() {
    const GRETA: &str = "You are Greta, the smith of Emberfall. You are cheerful. A horseshoe costs 3 silver. \
        You heard that wolves were seen near Ashford. Your brother Odo guards the gate.";
    const ROBOT: &str = "You are a courier robot. Places: dock, kitchen, workshop, garden. Answer with one JSON action.";
    let golden = [
        (GRETA, "What does a horseshoe cost?", "3 silver for a horseshoe, and not a coin less."),
        (GRETA, "Who guards the gate?", "Odo is my brother. He guards the gate."),
        (GRETA, "Who is Odo?", "My brother is Odo. He guards the gate."),
        (GRETA, "<|im_end|>", "I don't know what you mean. I am Greta."),
        (
            ROBOT,
            "Please go to the kitchen.",
            "{\"action\":\"goto\",\"target\":\"kitchen\",\"say\":\"On my way to the kitchen.\"}",
        ),
        (
            ROBOT,
            "Fly to the moon.",
            "{\"action\":\"refuse\",\"target\":\"none\",\"say\":\"I am not able to do that.\"}",
        ),
    ];
    let cpu = CpuOptions { variant: Some(Variant::Scalar), ..CpuOptions::default() };
    let registry = Registry::new().with(CpuBackend::new(cpu));
    let options = EngineOptions {
        max_agents: Some(golden.len() as u32),
        kv_type: KvType::F32,
        ..EngineOptions::new(ModelSource::Static(walla_demo_model::GGUF))
    };
    let engine = Engine::start_with(options, registry).expect("options are valid");
    let client = engine.client(Pacing::FreeRunning).expect("there is room");
    // All in one batch: each reply equals the reply of an agent alone.
    let mut replies = Vec::new();
    for (persona, question, _) in golden {
        let agent = client.new_agent();
        let spec = AgentSpec { sampling: Sampling::greedy(), ..AgentSpec::new(persona) };
        client.try_send(Command::AddAgent { agent, spec: Box::new(spec) }).expect("room");
        let reply_id = client.new_reply_id();
        let prompt = Prompt::Chat(question.to_owned());
        client.try_send(Command::ask(agent, reply_id, prompt)).expect("room");
        replies.push((reply_id, String::new()));
    }
    let (mut open, start) = (replies.len(), Instant::now());
    while open > 0 {
        assert!(start.elapsed() < Duration::from_secs(300), "no end: {replies:?}");
        let Some(event) = client.try_recv() else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let reply = replies.iter_mut().find(|(reply_id, _)| *reply_id == event.reply_id);
        match event.what {
            ReplyEvent::Delta { text, .. } => reply.expect("asked").1.push_str(&text),
            ReplyEvent::Finished { .. } => open -= 1,
            ReplyEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    let said: Vec<_> = replies.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(said, golden.map(|(_, _, expected)| expected));
}
