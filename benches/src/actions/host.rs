//! An engine whose agents are asked again and again.

use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, Instant};

use walla_runtime::{
    AgentId, AgentSpec, AskOptions, Call, Client, Command, Engine, EngineState, FinishReason,
    Prompt, RefusedCall, ReplyEvent, ReplyId, TrySendError, Usage,
};

/// Timeout, longer than any reply takes: a defect must fail, not hang.
const MAX_SILENCE: Duration = Duration::from_secs(120);

/// A reply.
#[derive(Debug, Default)]
pub struct Heard {
    /// Number of the ask, from 0.
    pub ask: u64,
    pub text: String,
    /// Sampled tokens with the bits of their log-probabilities, if they were requested.
    pub tokens: Vec<(u32, u32)>,
    pub calls: Vec<Call>,
    pub refused: Vec<RefusedCall>,
    pub reason: Option<FinishReason>,
    pub usage: Usage,
}

/// Starts an ask with this number, of the agent in this place.
type Next<'n, 'a> = dyn FnMut(&mut Host<'a>, usize, u64) -> Result<(), Box<dyn Error>> + 'n;

/// A client of an engine, and its agents.
pub struct Host<'a> {
    engine: &'a Engine,
    client: Client,
    open: HashMap<ReplyId, (usize, Heard)>,
}

impl<'a> Host<'a> {
    pub fn new(engine: &'a Engine, client: Client) -> Result<Self, Box<dyn Error>> {
        loop {
            match engine.state() {
                EngineState::Loading { .. } => std::thread::sleep(Duration::from_millis(2)),
                EngineState::Ready => break,
                EngineState::Failed(error) => return Err(error.to_string().into()),
                EngineState::Stopped => return Err("the engine has stopped".into()),
            }
        }
        Ok(Self { engine, client, open: HashMap::new() })
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn send(&self, mut command: Command) -> Result<(), Box<dyn Error>> {
        loop {
            match self.client.try_send(command) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(back)) => command = back,
                Err(TrySendError::Closed(_)) => return Err("the engine has stopped".into()),
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    pub fn add(&self, spec: AgentSpec) -> Result<AgentId, Box<dyn Error>> {
        let agent = self.client.new_agent();
        self.send(Command::AddAgent { agent, spec: Box::new(spec) })?;
        Ok(agent)
    }

    /// Asks an agent. `place` and `ask` identify the ask.
    pub fn ask(
        &mut self,
        (place, agent): (usize, AgentId),
        ask: u64,
        prompt: Prompt,
        options: AskOptions,
    ) -> Result<(), Box<dyn Error>> {
        let reply_id = self.client.new_reply_id();
        self.open.insert(reply_id, (place, Heard { ask, ..Heard::default() }));
        self.send(Command::Ask { agent, reply_id, prompt, options })
    }

    /// Whether all replies have ended.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether all agents with an open ask have spoken.
    pub fn all_speak(&self) -> bool {
        self.open.values().all(|(_, heard)| !heard.text.is_empty())
    }

    /// Takes the events that are there. Calls `ended` with the place of an agent and its reply.
    pub fn poll(&mut self, ended: &mut dyn FnMut(usize, Heard)) -> Result<bool, Box<dyn Error>> {
        let mut any = false;
        while let Some(event) = self.client.try_recv() {
            any = true;
            let Some((_, heard)) = self.open.get_mut(&event.reply_id) else { continue };
            match event.what {
                ReplyEvent::Delta { text, .. } => heard.text.push_str(&text),
                ReplyEvent::Token(token) => {
                    heard.tokens.push((token.token.0, token.log_probability.to_bits()));
                }
                ReplyEvent::Call(call) => heard.calls.push(*call),
                ReplyEvent::CallRefused(call) => heard.refused.push(*call),
                ReplyEvent::Finished { reason, usage } => {
                    (heard.reason, heard.usage) = (Some(reason), usage);
                    if let Some((place, heard)) = self.open.remove(&event.reply_id) {
                        ended(place, heard);
                    }
                }
                ReplyEvent::Failed(error) => return Err(error.to_string().into()),
                _ => {}
            }
        }
        Ok(any)
    }

    /// Asks each agent for the next reply until `asks` have ended. `next` starts an ask of the
    /// agent in a place.
    pub fn serve(
        &mut self,
        agents: usize,
        asks: u64,
        next: &mut Next<'_, 'a>,
        heard: &mut dyn FnMut(usize, Heard),
    ) -> Result<(), Box<dyn Error>> {
        let mut asked = 0;
        let mut free: Vec<usize> = (0..agents).collect();
        let mut spoken = Instant::now();
        loop {
            while asked < asks
                && let Some(place) = free.pop()
            {
                next(self, place, asked)?;
                asked += 1;
            }
            if self.is_idle() {
                return Ok(());
            }
            let mut ended = |place, reply| {
                free.push(place);
                heard(place, reply);
            };
            if self.poll(&mut ended)? {
                spoken = Instant::now();
            } else if spoken.elapsed() > MAX_SILENCE {
                return Err(format!("no event: {:?}", self.engine.stats()).into());
            }
            std::thread::sleep(Duration::from_micros(300));
        }
    }
}
