//! `walla evaluate`: replies of a model to the requests of a game, counted in a card.
//!
//! Replies are greedy, except for half of the constrained ones. No ask is part of the conversation
//! of another one. Other programs on the machine change the times, not the replies.

mod actions;
mod constraints;
mod memory;
mod refusals;
mod report;
mod speed;

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use walla::{AgentSpec, AskOptions, Engine, Finished, Prompt, memory::AgentRecall};

use self::report::Section;
use crate::Failure;
use crate::args::{Evaluate, Part};
use crate::chat::check_template;
use crate::load;
use crate::note::note;
use crate::output::Target;

/// No engine of this command is without one.
const NO_MODEL: &str = "the engine has no model";

/// Agents that reply at the same time.
const AGENTS: usize = 8;

/// Tokens of each agent's context: persona, actions, memories, a request and its reply.
const CONTEXT_TOKENS: u32 = 2_048;

pub fn run(arguments: &Evaluate) -> Result<(), Failure> {
    load::block_on(evaluate(arguments))
}

async fn evaluate(arguments: &Evaluate) -> Result<(), Failure> {
    let model = arguments.model.as_deref();
    let template = arguments.template.template.as_ref();
    if let Some(model) = model {
        check_template(model, template)?;
    }
    // Checked before the measurements, so that an unwritable path fails at once.
    let inputs: Vec<&Path> = model.into_iter().collect();
    let target = arguments.json.as_deref().map(|path| Target::new(path, &inputs)).transpose()?;
    let size = (AGENTS as u32, CONTEXT_TOKENS);
    let engine = load::engine(model, &arguments.engine, size, template, None).await?;
    let card = load::until_done(&engine, card(&engine, arguments)).await?;
    // Before the table: a closed output ends the program, and the measurements took minutes.
    if let Some(target) = target {
        let mut output = target.create()?;
        let written = writeln!(output.file, "{:#}", card.to_json()).and_then(|()| output.finish());
        written.map_err(|error| target.failed(&error))?;
    }
    card.print(&mut std::io::stdout().lock())
}

async fn card(engine: &Engine, arguments: &Evaluate) -> Result<report::Card, Failure> {
    let model = report::model(engine, arguments)?;
    let has = |part| arguments.parts.contains(&part);
    let mut card = report::Card { model, speed: None, sections: Vec::new() };
    // First, because the time of a cold prompt needs an engine without prompts.
    if has(Part::Speed) {
        note!("walla: speed");
        card.speed = Some(speed::measure(engine).await?);
    }
    if has(Part::Actions) {
        card.sections.extend(actions::measure(engine).await?);
    }
    if has(Part::Memory) {
        card.sections.extend(memory::measure(engine).await?);
    }
    if has(Part::Constraints) {
        card.sections.push(constraints::measure(engine).await?);
    }
    if has(Part::Refusals) {
        card.sections.extend(refusals::measure(engine).await?);
    }
    Ok(card)
}

/// The schema of an object with these properties and no others.
fn object(properties: Value) -> Value {
    let names: Vec<String> =
        properties.as_object().into_iter().flat_map(|all| all.keys().cloned()).collect();
    json!({
        "type": "object", "properties": properties, "required": names,
        "additionalProperties": false,
    })
}

/// The replies of agents with this specification, in the order of the asks.
async fn ask_all(
    engine: &Engine,
    what: &str,
    spec: &AgentSpec,
    recall: Option<&AgentRecall>,
    asks: Vec<(String, AskOptions)>,
) -> Result<Vec<Finished>, Failure> {
    note!("walla: {what}, {} replies", asks.len());
    let agents: Vec<_> = (0..AGENTS).map(|_| engine.agent_with(spec.clone())).collect();
    for agent in &agents {
        agent.set_recall(recall.cloned());
    }
    let mut heard = Vec::with_capacity(asks.len());
    for group in asks.chunks(AGENTS) {
        let replies: Vec<_> = agents
            .iter()
            .zip(group)
            .map(|(agent, (text, options))| {
                let options = AskOptions { aside: true, ..options.clone() };
                agent.ask_with(Prompt::Chat(text.clone()), options)
            })
            .collect();
        for reply in replies {
            heard.push(reply.finish().await?);
        }
    }
    Ok(heard)
}
