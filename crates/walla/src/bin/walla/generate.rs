//! `walla generate`: raw completion.

use std::io::Write;
use std::time::Instant;

use walla::{AgentSpec, Engine, FinishReason, Prompt};

use crate::Failure;
use crate::args::{CUT, Generate};
use crate::load;
use crate::note::note;
use crate::usage::Report;

pub fn run(arguments: &Generate) -> Result<(), Failure> {
    let Generate { model, engine, context, .. } = arguments;
    load::block_on(async {
        let engine = load::engine(Some(model), engine, (1, *context), None, None).await?;
        load::until_done(&engine, speak(&engine, arguments)).await
    })
}

async fn speak(engine: &Engine, arguments: &Generate) -> Result<(), Failure> {
    let spec = AgentSpec {
        sampling: arguments.sampling.sampling()?,
        max_reply_tokens: arguments.tokens,
        constraint: arguments.constraint.constraint()?,
        ..AgentSpec::new("")
    };
    let is_constrained = spec.constraint.is_some();
    let agent = engine.agent_with(spec);
    let prompt = arguments.prompt.clone();
    let prompt = if arguments.special { Prompt::RawTrusted(prompt) } else { Prompt::Raw(prompt) };
    let mut reply = agent.ask(prompt);
    let (mut out, mut first) = (std::io::stdout(), None);
    while let Some(delta) = reply.next().await {
        first.get_or_insert_with(Instant::now);
        write!(out, "{}", delta?.text())?;
        out.flush()?;
    }
    writeln!(out)?;
    if let Some((reason, usage)) = reply.end() {
        note!("stopped: {}", because(reason, arguments));
        note!("{}", Report(usage));
        if is_constrained && reason != FinishReason::EndOfTurn {
            return Err(CUT.into());
        }
    }
    Ok(())
}

/// The reason for the end of a reply, as text.
fn because(reason: FinishReason, arguments: &Generate) -> String {
    match reason {
        FinishReason::Stop { .. } => "a stop string".into(),
        FinishReason::StopToken => "a stop token".into(),
        FinishReason::Length => format!("{} tokens, the limit of -n", arguments.tokens),
        FinishReason::ContextFull => {
            format!("the context of {} tokens is full (see --context)", arguments.context)
        }
        FinishReason::Cancelled => "it was cancelled".into(),
        FinishReason::TimedOut => "its time was over".into(),
        FinishReason::ReasoningLength => "the limit of reasoning tokens".into(),
        FinishReason::CallLimit => "the limit of calls".into(),
        _ => "the model ended the text".into(),
    }
}
