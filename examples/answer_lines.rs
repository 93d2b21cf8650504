//! Answers conversations from lines of JSON, many at a time in one batch: for evaluations and data
//! processing.
//!
//! ```text
//! echo '{"messages": [{"role": "user", "content": "Hello"}], "seed": 1, "temperature": 0.7, "max_tokens": 64}' |
//!     cargo run --release -p walla_examples --example answer_lines
//! ```
//!
//! Input: `{"messages": [{"role", "content"} …], "seed", "temperature", "max_tokens"}`. Roles are
//! `system`, `user`, `assistant`, `observation`, `action` (the content is a call in JSON) and
//! `result`. Output, in the same order: `{"text", "finish"}` with `finish` one of `stop`, `length`
//! and `failed`. A line that is no such conversation is `failed`, too; its text has the number of
//! the line and the reason.
//!
//! With `"tools"`, a list of actions in the form of OpenAI's API, the output also has
//! `"calls": [{"name", "arguments"} …]`.

use std::collections::VecDeque;
use std::io::{BufRead, Write};

use clap::Parser;
use serde_json::{Value, json};
use walla::{
    ActionSet, ActionSpec, Actions, Agent, AgentSpec, Call, Engine, EngineOptions, FinishReason,
    Prompt, Reply, Sampling, Speaker, Turn,
};
use walla_examples::{ModelArgs, fail};

/// Answers conversations from lines of JSON.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// Number of conversations in parallel.
    #[arg(long, value_name = "N", default_value_t = 16)]
    agents: u32,
}

type Failure = Box<dyn std::error::Error>;

/// A conversation that is being answered (and whether it has actions), or why a line is none.
type Waiting = Result<(Agent, Reply, bool), String>;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if let Err(error) = answer_all(&Arguments::parse()).await {
        fail(error);
    }
}

async fn answer_all(arguments: &Arguments) -> Result<(), Failure> {
    // One slot more than active agents: the previous agent may not be removed yet.
    let options = arguments.model.options(arguments.agents + 1)?;
    let engine = Engine::start(EngineOptions { max_prefill_tokens: Some(128), ..options }).await?;
    let mut waiting: VecDeque<Waiting> = VecDeque::new();
    for (number, line) in (1..).zip(std::io::stdin().lock().lines()) {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        if waiting.len() >= arguments.agents as usize {
            finish_first(&mut waiting).await?;
        }
        let parsed = serde_json::from_str(&line).map_err(Failure::from);
        waiting.push_back(match parsed.and_then(|line| request(&line)) {
            Ok((spec, question)) => {
                let has_actions = spec.actions.is_some();
                let agent = engine.agent_with(spec);
                let reply = agent.ask(question);
                Ok((agent, reply, has_actions))
            }
            Err(reason) => Err(format!("line {number}: {reason}")),
        });
    }
    while !waiting.is_empty() {
        finish_first(&mut waiting).await?;
    }
    engine.stop().await; // closes the device before the program ends
    Ok(())
}

/// An agent with the history, and its prompt: the last message if it is the user's, else the
/// conversation as it is.
fn request(line: &Value) -> Result<(AgentSpec, Prompt), Failure> {
    let mut spec = AgentSpec::new("");
    let mut turns = Vec::new();
    for message in line["messages"].as_array().ok_or("no messages")? {
        let text = message["content"].as_str().ok_or("a message without content")?.to_owned();
        let speaker = match message["role"].as_str() {
            Some("system") => {
                spec.persona = text;
                continue;
            }
            Some("assistant") => Speaker::Agent,
            Some("observation") => Speaker::Observation,
            Some("action") => Speaker::Action,
            Some("result") => Speaker::ActionResult,
            Some("user") => Speaker::User,
            role => return Err(format!("a message with the role {role:?}").into()),
        };
        turns.push(Turn::new(speaker, text));
    }
    let question = match turns.pop_if(|turn| turn.speaker == Speaker::User) {
        Some(last) => Prompt::Chat(last.text),
        None => Prompt::Continue,
    };
    spec.turns = turns;
    if let Some(tools) = line["tools"].as_array().filter(|tools| !tools.is_empty()) {
        spec.actions = Some(Actions::new(actions(tools)?));
    }
    spec.sampling = Sampling::builder()
        .temperature(line["temperature"].as_f64().unwrap_or(0.7) as f32)
        .top_k(0)
        .top_p(1.0)
        .min_p(0.0)
        .seed(line["seed"].as_u64().unwrap_or(0))
        .build()?;
    spec.max_reply_tokens = line["max_tokens"].as_u64().unwrap_or(256) as u32;
    Ok((spec, question))
}

/// Actions from the form of OpenAI's API.
fn actions(tools: &[Value]) -> Result<ActionSet, Failure> {
    let mut specs = Vec::new();
    for tool in tools {
        let function = &tool["function"];
        let name = function["name"].as_str().ok_or("a tool without a name")?;
        let description = function["description"].as_str().unwrap_or_default();
        specs.push(ActionSpec::new(name, description, &function["parameters"])?);
    }
    Ok(ActionSet::new(specs)?)
}

async fn finish_first(waiting: &mut VecDeque<Waiting>) -> Result<(), Failure> {
    let (agent, reply, has_actions) = match waiting.pop_front() {
        None => return Ok(()),
        Some(Ok(asked)) => asked,
        Some(Err(reason)) => {
            let answer = json!({"text": reason, "finish": "failed"});
            return Ok(writeln!(std::io::stdout(), "{answer}")?);
        }
    };
    let answer = match reply.finish().await {
        Ok(finished) => {
            let is_stop = finished.reason == FinishReason::EndOfTurn;
            let finish = if is_stop { "stop" } else { "length" };
            let mut answer = json!({"text": finished.text, "finish": finish});
            if has_actions {
                let call = |call: Call| json!({"name": call.name, "arguments": call.arguments});
                answer["calls"] = finished.calls.into_iter().map(call).collect();
            }
            answer
        }
        Err(error) => json!({"text": error.to_string(), "finish": "failed"}),
    };
    drop(agent);
    Ok(writeln!(std::io::stdout(), "{answer}")?)
}
