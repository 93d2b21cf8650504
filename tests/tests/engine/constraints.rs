//! Constrained replies of an engine with its threads: they conform, and change no other reply.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use walla_runtime::{
    AgentSpec, Client, Command, Constraint, Engine, EngineOptions, FinishReason, FrameBudget,
    ModelSource, Pacing, Prompt, ReplyEvent, ReplyId,
};
use walla_types::Sampling;

/// Timeout, longer than any reply takes: a defect must fail, not hang.
const HANGS_AFTER: Duration = Duration::from_secs(300);

/// Agents with a constraint, and as many without.
const AGENTS: u64 = 16;

/// Schemas of a shop, a gate and a quest, different for each `n`.
fn schema(n: u64) -> Value {
    let closed = |properties: Value| {
        let required: Vec<_> = properties.as_object().expect("an object").keys().cloned().collect();
        json!({
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": false
        })
    };
    let name = format!("item{n}");
    match n % 4 {
        0 => closed(json!({
            name: {"enum": ["nails", "sword", "horseshoe"]},
            "price": {"type": "integer", "minimum": 1, "maximum": 99 + n}
        })),
        1 => closed(json!({
            name: {"type": "string", "maxLength": 8 + n},
            "open": {"type": "boolean"}
        })),
        2 => closed(json!({
            name: {"type": "array", "maxItems": 3, "items": {"enum": ["go", "take", "give", n]}},
            "mood": {"anyOf": [{"type": "null"}, {"const": "glad"}]}
        })),
        _ => closed(json!({
            name: {"$ref": "#/$defs/place"},
            "at": {"type": "integer", "minimum": 0, "maximum": 24}
        }))
        .as_object()
        .map(|object| {
            let mut object = object.clone();
            object.insert(
                "$defs".into(),
                json!({"place": {"pattern": "^[a-z]{1,9}$", "type": "string"}}),
            );
            Value::Object(object)
        })
        .expect("an object"),
    }
}

fn engine() -> Engine {
    let options = EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(2 * AGENTS as u32),
        context_tokens: 512,
        budget: FrameBudget::Unlimited,
        ..EngineOptions::new(ModelSource::Static(walla_demo_model::GGUF))
    };
    Engine::start(options).expect("options are valid")
}

fn spec(seed: u64, constraint: Option<Constraint>) -> AgentSpec {
    AgentSpec {
        sampling: Sampling::builder().temperature(1.2).seed(seed).build().expect("valid"),
        max_reply_tokens: 100,
        constraint,
        ..AgentSpec::new("You are Greta, the smith of this town.")
    }
}

type Replies = HashMap<ReplyId, (String, Option<FinishReason>)>;

/// Asks all agents at once, and waits for all replies, in order.
fn ask_all(client: &Client, specs: Vec<AgentSpec>) -> Vec<(String, FinishReason)> {
    let (mut replies, mut asked) = (Replies::new(), Vec::new());
    for spec in specs {
        let agent = client.new_agent();
        client.try_send(Command::AddAgent { agent, spec: Box::new(spec) }).expect("room");
        let reply_id = client.new_reply_id();
        let prompt = Prompt::Chat("What can you offer me today?".into());
        client.try_send(Command::ask(agent, reply_id, prompt)).expect("room");
        replies.insert(reply_id, (String::new(), None));
        asked.push(reply_id);
    }
    let start = Instant::now();
    while replies.values().any(|(_, end)| end.is_none()) {
        assert!(start.elapsed() < HANGS_AFTER, "{replies:?}");
        while let Some(event) = client.try_recv() {
            let (text, end) = replies.get_mut(&event.reply_id).expect("asked");
            match event.what {
                ReplyEvent::Delta { text: delta, .. } => text.push_str(&delta),
                ReplyEvent::Finished { reason, .. } => assert_eq!(end.replace(reason), None),
                ReplyEvent::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let ended = |id| replies.remove(id).map(|(text, end)| (text, end.expect("it has ended")));
    asked.iter().filter_map(ended).collect()
}

#[test]
fn replies_conform_to_their_schemas_and_change_no_other_reply() {
    let engine = engine();
    let client = engine.client(Pacing::FreeRunning).expect("there is room");
    let plain = |n| spec(100 + n, None);
    let expected = ask_all(&client, (0..AGENTS).map(plain).collect());
    let constrained = |n| spec(n, Some(Constraint::json_schema_value(&schema(n))));
    let specs = (0..AGENTS).flat_map(|n| [constrained(n), plain(n)]).collect();
    let (mut finished, mut different) = (0, std::collections::HashSet::new());
    for (at, (text, reason)) in ask_all(&client, specs).into_iter().enumerate() {
        let n = at as u64 / 2;
        if at % 2 == 1 {
            assert_eq!((text, reason), expected[n as usize], "agent {n} has no constraint");
            continue;
        }
        match reason {
            FinishReason::EndOfTurn => {
                let value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
                let validator = jsonschema::validator_for(&schema(n)).expect("a schema");
                assert!(validator.is_valid(&value), "{text} does not conform to {}", schema(n));
                finished += 1;
            }
            // A text may be longer than the reply.
            reason => assert_eq!(reason, FinishReason::Length, "{text}"),
        }
        different.insert(text);
    }
    assert!(finished >= AGENTS - 2, "{finished} replies finished");
    assert!(different.len() as u64 >= AGENTS - 1);
    engine.stop();
}
