//! Latencies of a real server under the load of some agents.

use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, Instant};

use bevy_walla::engine::{AgentId, AgentSpec, Command, EngineClient, Prompt, ReplyEvent};
use bevy_walla::remote::{Dialect, RemoteEngine, RemoteOptions};
use bevy_walla::reply::ReplyId;

use crate::server::Latencies;

/// Agents that ask at the same time.
const AGENTS: usize = 16;

/// Asks of each of them.
const ASKS: usize = 8;

pub fn measure(url: &str) -> Result<Latencies, Box<dyn Error>> {
    let mut options = RemoteOptions::new(url, "walla");
    options.dialect = Dialect::Walla;
    options.max_requests = AGENTS as u32;
    let client = RemoteEngine::start(options)?.client();
    let send = |command| client.try_send(command).map_err(|_| "the engine accepts no command");
    let (mut first, mut next) = (Vec::new(), Vec::new());
    let agents: Vec<AgentId> = (0..AGENTS).map(|_| AgentId::unique()).collect();
    for (at, &agent) in agents.iter().enumerate() {
        let mut spec = AgentSpec::new(format!("You are guest {at} of the tavern."));
        spec.max_reply_tokens = 32;
        send(Command::AddAgent { agent, spec: Box::new(spec) })?;
    }
    for _ in 0..ASKS {
        let mut latest: HashMap<ReplyId, (Instant, bool)> = HashMap::new();
        for &agent in &agents {
            let reply_id = ReplyId::unique();
            latest.insert(reply_id, (Instant::now(), true));
            send(Command::ask(agent, reply_id, Prompt::Chat("What news?".into())))?;
        }
        let begin = Instant::now();
        while !latest.is_empty() {
            if begin.elapsed() > Duration::from_secs(120) {
                return Err("the server does not answer".into());
            }
            let Some(event) = client.try_recv() else {
                std::thread::sleep(Duration::from_micros(100));
                continue;
            };
            match event.what {
                ReplyEvent::Delta { .. } => {
                    let Some((then, is_first)) = latest.get_mut(&event.reply_id) else { continue };
                    let millis = then.elapsed().as_secs_f64() * 1e3;
                    if std::mem::take(is_first) {
                        first.push(millis);
                    } else {
                        next.push(millis);
                    }
                    *then = Instant::now();
                }
                ReplyEvent::Finished { .. } => _ = latest.remove(&event.reply_id),
                ReplyEvent::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
    }
    Ok(Latencies::new(first, next).ok_or("the server sent no text")?)
}
