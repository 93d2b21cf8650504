//! A decoder without pacing by frames: the effect on a renderer of a background thread with its own
//! model.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bevy::prelude::Resource;
use bevy_walla::diagnostics::EngineStats;
use bevy_walla::engine::{AgentId, AgentSpec, Client, Command, Engine, Prompt, TrySendError};
use bevy_walla::reply::ReplyId;
use walla_examples::name;

use crate::{FREE, REPLY_TOKENS};

/// Sequences that decode as fast as the device allows, while they are on.
#[derive(Resource)]
pub struct FreeDecoder {
    engine: Engine,
    on: Arc<AtomicBool>,
}

/// One sequence and its reply in progress.
struct Sequence {
    agent: AgentId,
    reply_id: Option<ReplyId>,
}

impl FreeDecoder {
    /// Starts the thread that sends asks; the engine decodes without frames.
    ///
    /// # Errors
    /// The engine's error.
    pub fn start(engine: Engine, sequences: u32) -> Result<Self, String> {
        let client = engine.client(FREE).map_err(|error| error.to_string())?;
        let on = Arc::new(AtomicBool::new(false));
        let switch = Arc::clone(&on);
        std::thread::Builder::new()
            .name("free-decoder".to_owned())
            .spawn(move || drive(&client, &switch, sequences))
            .map_err(|error| error.to_string())?;
        Ok(Self { engine, on })
    }

    /// Switches it on or off.
    pub fn set(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// The engine's counters.
    pub fn stats(&self) -> EngineStats {
        self.engine.stats()
    }
}

fn drive(client: &Client, on: &AtomicBool, sequences: u32) {
    let mut all: Vec<Sequence> = (0..sequences as usize)
        .filter_map(|place| {
            let agent = client.new_agent();
            let spec = AgentSpec {
                max_reply_tokens: REPLY_TOKENS,
                ..AgentSpec::new(format!("You are {}.", name(place)))
            };
            let add = Command::AddAgent { agent, spec: Box::new(spec) };
            client.try_send(add).is_ok().then_some(Sequence { agent, reply_id: None })
        })
        .collect();
    loop {
        while let Some(event) = client.try_recv() {
            if event.what.is_terminal()
                && let Some(sequence) = all.iter_mut().find(|one| one.agent == event.agent)
            {
                sequence.reply_id = None;
            }
        }
        for sequence in &mut all {
            if sequence.step(client, on.load(Ordering::Relaxed)).is_err() {
                return; // the engine is gone
            }
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

impl Sequence {
    /// Sends an ask if it is silent and should speak; cancels if it speaks and should not.
    fn step(&mut self, client: &Client, on: bool) -> Result<(), ()> {
        let agent = self.agent;
        let (command, next) = match (on, self.reply_id) {
            (true, None) => {
                let reply_id = client.new_reply_id();
                let prompt = Prompt::Chat("Tell me a long story.".to_owned());
                (Command::ask(agent, reply_id, prompt), Some(reply_id))
            }
            (false, Some(reply_id)) => (Command::Cancel { agent, reply_id }, self.reply_id),
            _ => return Ok(()),
        };
        match client.try_send(command) {
            Ok(()) => self.reply_id = next,
            Err(TrySendError::Full(_)) => {} // retried at the next step
            Err(TrySendError::Closed(_)) => return Err(()),
        }
        Ok(())
    }
}
