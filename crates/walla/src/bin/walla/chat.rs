//! `walla chat`: talk to an agent. Ctrl-C stops the reply and not the program; Ctrl-D or an empty Ctrl-C ends it.

use std::io::Write;
use std::path::Path;

use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use walla::{Agent, AgentSpec, Engine, TemplateChoice};
use walla_model::chat::ChatTemplate;

use crate::Failure;
use crate::args::Chat;
use crate::load;

pub fn run(arguments: &Chat) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(chat(arguments));
    // A blocked read of standard input must not keep the program alive.
    runtime.shutdown_background();
    result
}

async fn chat(arguments: &Chat) -> Result<(), Failure> {
    let Chat { device, budget, pre, context, .. } = arguments;
    let model = arguments.model.as_deref();
    let template = arguments.template.template.as_ref();
    // Before the weights are read, which can take long.
    if let Some(model) = model {
        check_template(model, template)?;
    }
    let engine = load::engine(model, device, budget, *context, (template, pre)).await?;
    let result = talk(&engine, arguments).await;
    load::stop(&engine).await;
    result
}

/// Refuses a model without a chat template that works, and names the ways out.
fn check_template(model: &Path, choice: Option<&TemplateChoice>) -> Result<(), Failure> {
    let file = load::open_quietly(model)?;
    match ChatTemplate::resolve(&file, choice) {
        Ok((Some(_), _)) => Ok(()),
        Ok((None, state)) => Err(format!("{}: {state}; {WAYS_OUT}", model.display()).into()),
        Err(reason) => Err(format!("--template {}: {reason}", display(choice)).into()),
    }
}

fn display(choice: Option<&TemplateChoice>) -> String {
    choice.map(ToString::to_string).unwrap_or_default()
}

/// Remedies for a model without a chat template that works.
pub const WAYS_OUT: &str = "choose a template with --template chatml, llama3, gemma, mistral or a \
Jinja file, or continue raw text with `walla generate`";

async fn talk(engine: &Engine, arguments: &Chat) -> Result<(), Failure> {
    let spec = AgentSpec {
        sampling: arguments.sampling.sampling()?,
        reply_tokens_max: arguments.tokens,
        ..AgentSpec::new(arguments.persona.clone())
    };
    let agent = engine.agent_with(spec);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = prompt(&mut lines).await? {
        if !line.trim().is_empty() {
            answer(&agent, line).await?;
        }
    }
    Ok(())
}

/// The next line; `None` at the end of input or at Ctrl-C.
async fn prompt(lines: &mut Lines<BufReader<Stdin>>) -> Result<Option<String>, Failure> {
    let mut out = std::io::stdout();
    write!(out, "> ")?;
    out.flush()?;
    tokio::select! {
        line = lines.next_line() => Ok(line?),
        _ = tokio::signal::ctrl_c() => {
            writeln!(out)?;
            Ok(None)
        }
    }
}

async fn answer(agent: &Agent, line: String) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    let mut reply = agent.ask(line);
    loop {
        tokio::select! {
            delta = reply.next() => match delta {
                None => break,
                Some(Ok(delta)) => {
                    write!(out, "{}", delta.text())?;
                    out.flush()?;
                }
                // One reply failed; the conversation goes on.
                Some(Err(error)) => write!(out, "[{error}]")?,
            },
            _ = tokio::signal::ctrl_c() => reply.cancel(),
        }
    }
    writeln!(out)?;
    Ok(())
}
