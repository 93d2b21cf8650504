//! `walla chat`: talk to an agent. Ctrl-C stops the reply and not the program; Ctrl-D or an empty Ctrl-C ends it.

use std::io::Write;

use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use walla::{Agent, AgentSpec, Engine};

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
    let path = arguments.model.as_deref();
    let engine = load::engine(path, device, budget, (pre, *context)).await?;
    let result = talk(&engine, arguments).await;
    load::stop(&engine).await;
    result
}

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
