//! The scenes: who is asked when.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use bevy_walla::agent::Sampling;
use bevy_walla::tokens::{EncodeOptions, Tokenizer};
use walla_benches::game::{Game, Values};
use walla_runtime::{
    AgentId, AgentSpec, Client, Command, Event, Prompt, ReplyEvent, ReplyId, Speaker, Turn, Usage,
};

/// Frames after which an ask counts as lost.
const MAX_FRAMES: usize = 60 * 120;

/// Frames between a reply and the next ask, in which an idle agent is prepared.
const PAUSE_FRAMES: usize = 45;

/// Speech tokens of a reply.
const REPLY_TOKENS: u32 = 24;

/// Tokens of speech per second.
const VOICE_RATE: f32 = 8.0;

/// Writes personas of a certain length.
pub struct Cast {
    tokenizer: Arc<Tokenizer>,
    persona_tokens: usize,
    context_tokens: u32,
    written: usize,
}

const NAMES: [&str; 6] = ["Greta", "Odo", "Pip", "Wren", "Marta", "Jory"];
const TRADES: [&str; 5] = ["smith", "miller", "guard", "baker", "ferryman"];
const FACTS: [&str; 6] = [
    "The bridge over the river is closed since the storm.",
    "A horseshoe costs two coins, and an axe costs nine.",
    "The old mine in the north is haunted, people say.",
    "The inn has a room, but the soup is thin.",
    "Wolves were seen near the sheep last week.",
    "The mayor wants the road to the harbour repaired.",
];

impl Cast {
    pub fn new(tokenizer: Arc<Tokenizer>, persona_tokens: usize, context_tokens: u32) -> Self {
        Self { tokenizer, persona_tokens, context_tokens, written: 0 }
    }

    fn tokens(&self, text: &str) -> usize {
        self.tokenizer.encode(text, EncodeOptions::default()).map_or(0, |tokens| tokens.len())
    }

    /// A persona that differs from all others within its first words.
    fn persona(&mut self) -> String {
        let n = self.written;
        self.written += 1;
        let (name, trade) = (NAMES[n % NAMES.len()], TRADES[n / NAMES.len() % TRADES.len()]);
        let mut persona = format!("Number {n}: you are {name}, the {trade} of this town.");
        for fact in (n..).map(|fact| FACTS[fact % FACTS.len()]) {
            if self.tokens(&persona) >= self.persona_tokens {
                break;
            }
            persona.push(' ');
            persona.push_str(fact);
        }
        persona
    }

    fn spec(&mut self) -> AgentSpec {
        let sampling = Sampling::builder().temperature(0.8).seed(self.written as u64);
        AgentSpec {
            sampling: sampling.build().unwrap_or_default(),
            max_reply_tokens: REPLY_TOKENS,
            voice_rate: Some(VOICE_RATE),
            ..AgentSpec::new(self.persona())
        }
    }

    /// Turns that fill the context.
    fn long_history(&self) -> Vec<Turn> {
        let (mut turns, mut tokens) = (Vec::new(), 0);
        for n in 0.. {
            let texts = [format!("What happened on day {n}?"), FACTS[n % FACTS.len()].to_owned()];
            for (speaker, text) in [Speaker::User, Speaker::Agent].into_iter().zip(texts) {
                tokens += self.tokens(&text);
                turns.push(Turn::new(speaker, text));
            }
            if tokens > 2 * self.context_tokens as usize {
                break;
            }
        }
        turns
    }
}

/// Results of a scene.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub scene: &'static str,
    /// Milliseconds from each ask to its first token.
    pub first_token: Values,
    /// For each crowd: until the last of its agents had its first token.
    pub last: Values,
    /// Prompt tokens that were evaluated at an ask.
    pub evaluated: Values,
    /// Work of the game per frame, in milliseconds.
    pub work: Values,
    /// Device time per frame that used any, in milliseconds.
    pub device: Values,
    /// Frames and frames over their budget.
    pub frames: (u64, u64),
    /// Usage of the ask with the longest time to its first token.
    pub slowest: Usage,
    /// Milliseconds by which speakers' tokens came later than their voice needs them.
    pub late: Values,
}

/// An agent that speaks all the time.
struct Voice {
    agent: AgentId,
    since: Option<Instant>,
    tokens: u32,
}

/// Plays scenes on one engine.
pub struct Scenes<'a> {
    game: &'a mut Game,
    client: &'a Client,
    cast: Cast,
    /// Ended replies; `None` for failed ones.
    ended: HashMap<ReplyId, Option<Usage>>,
    voices: HashMap<ReplyId, Voice>,
    speakers: usize,
    events: Vec<Event>,
    row: Row,
}

impl<'a> Scenes<'a> {
    pub fn new(game: &'a mut Game, client: &'a Client, cast: Cast, speakers: usize) -> Self {
        let (ended, voices, events) = (HashMap::new(), HashMap::new(), Vec::new());
        let row = Row::default();
        Self { game, client, cast, ended, voices, speakers, events, row }
    }

    /// Plays all scenes: `rounds` times with one agent, and `crowds` times with `agents` at once.
    pub fn play(
        &mut self,
        agents: usize,
        rounds: usize,
        crowds: usize,
    ) -> Result<Vec<Row>, Box<dyn Error>> {
        let mut rows = Vec::new();
        for _ in 0..self.speakers {
            let agent = self.spawn(Vec::new(), 100_000)?;
            self.speak(agent)?;
        }
        self.frames(120)?;
        for (scene, waits) in [("one agent, cold", false), ("one agent, warm", true)] {
            self.begin(scene);
            for _ in 0..rounds {
                let agent = self.spawn(Vec::new(), REPLY_TOKENS)?;
                self.pause(waits)?;
                self.ask_all(&[agent])?;
                self.remove(&[agent])?;
            }
            rows.push(self.end());
        }
        let mut again = Vec::new();
        for (scene, waits) in [("all agents, cold", false), ("all agents, warm", true)] {
            self.begin(scene);
            for _ in 0..crowds {
                self.remove(&again)?;
                again = (0..agents)
                    .map(|_| self.spawn(Vec::new(), REPLY_TOKENS))
                    .collect::<Result<_, _>>()?;
                self.pause(waits)?;
                self.ask_all(&again)?;
            }
            rows.push(self.end());
        }
        self.begin("all agents, second round");
        for _ in 0..crowds {
            self.pause(true)?;
            self.ask_all(&again)?;
        }
        rows.push(self.end());
        self.remove(&again)?;
        let full = self.spawn(self.cast.long_history(), REPLY_TOKENS)?;
        self.begin("one agent, full context");
        for _ in 0..2 * rounds {
            self.pause(true)?;
            self.ask_all(&[full])?;
        }
        rows.push(self.end());
        self.remove(&[full])?;
        Ok(rows)
    }

    fn begin(&mut self, scene: &'static str) {
        let stats = self.client.engine().stats().budget;
        self.row = Row { scene, frames: (stats.frames, stats.frames_over), ..Row::default() };
    }

    fn end(&mut self) -> Row {
        let stats = self.client.engine().stats().budget;
        let mut row = std::mem::take(&mut self.row);
        row.frames = (stats.frames - row.frames.0, stats.frames_over - row.frames.1);
        row
    }

    fn send(&self, command: Command) -> Result<(), Box<dyn Error>> {
        self.client.try_send(command).map_err(|_| "the command queue is full".into())
    }

    fn spawn(
        &mut self,
        turns: Vec<Turn>,
        max_reply_tokens: u32,
    ) -> Result<AgentId, Box<dyn Error>> {
        let agent = self.client.new_agent();
        let spec = AgentSpec { turns, max_reply_tokens, ..self.cast.spec() };
        self.send(Command::AddAgent { agent, spec: Box::new(spec) })?;
        Ok(agent)
    }

    fn speak(&mut self, agent: AgentId) -> Result<(), Box<dyn Error>> {
        let reply_id = self.client.new_reply_id();
        let prompt = Prompt::Chat("Tell me a long story.".into());
        self.send(Command::ask(agent, reply_id, prompt))?;
        self.voices.insert(reply_id, Voice { agent, since: None, tokens: 0 });
        Ok(())
    }

    /// Lets the agents be prepared, or not.
    fn pause(&mut self, waits: bool) -> Result<(), Box<dyn Error>> {
        if !waits {
            return Ok(());
        }
        self.frames(PAUSE_FRAMES)?;
        // A crowd on a slow device takes longer.
        for _ in 0..MAX_FRAMES / PAUSE_FRAMES {
            let before = self.client.engine().stats().background_tokens;
            self.frames(PAUSE_FRAMES)?;
            if self.client.engine().stats().background_tokens == before {
                break;
            }
        }
        Ok(())
    }

    /// Asks all of them in one frame, and waits for the end of their replies.
    fn ask_all(&mut self, agents: &[AgentId]) -> Result<(), Box<dyn Error>> {
        let mut asked = Vec::new();
        for &agent in agents {
            let reply_id = self.client.new_reply_id();
            let prompt = Prompt::Chat("What does a horseshoe cost?".into());
            self.send(Command::ask(agent, reply_id, prompt))?;
            asked.push(reply_id);
        }
        for frame in 0.. {
            self.frames(1)?;
            if asked.iter().all(|reply_id| self.ended.contains_key(reply_id)) {
                break;
            }
            if frame > MAX_FRAMES {
                return Err(format!("{}: an ask has no end", self.row.scene).into());
            }
        }
        let mut last = 0.0;
        for reply_id in asked {
            let usage = self.ended.remove(&reply_id).flatten().ok_or("a reply failed")?;
            let millis = usage.first_token_micros as f64 / 1e3;
            self.row.first_token.add(millis);
            last = millis.max(last);
            self.row.evaluated.add(f64::from(usage.prompt_tokens - usage.cached_tokens));
            if usage.first_token_micros > self.row.slowest.first_token_micros {
                self.row.slowest = usage;
            }
        }
        self.row.last.add(last);
        Ok(())
    }

    fn remove(&mut self, agents: &[AgentId]) -> Result<(), Box<dyn Error>> {
        agents.iter().try_for_each(|&agent| self.send(Command::RemoveAgent { agent }))?;
        self.frames(2)
    }

    /// Plays frames of the game. As the plugin does, it receives events at the beginning of a frame
    /// and grants the engine's steps at the end.
    fn frames(&mut self, count: usize) -> Result<(), Box<dyn Error>> {
        for _ in 0..count {
            self.receive()?;
            self.row.work.add(self.game.work());
            self.client.frame();
            self.game.rest();
            let used = self.client.engine().stats().budget.used;
            if !used.is_zero() {
                self.row.device.add(used.as_secs_f64() * 1e3);
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), Box<dyn Error>> {
        let mut events = std::mem::take(&mut self.events);
        while self.client.try_recv_many(256, &mut events) > 0 {}
        for Event { reply_id, what, .. } in events.drain(..) {
            match what {
                ReplyEvent::Delta { tokens, .. } => self.hear(reply_id, tokens),
                ReplyEvent::Finished { usage, .. } => match self.voices.remove(&reply_id) {
                    Some(voice) => self.speak(voice.agent)?,
                    None => _ = self.ended.insert(reply_id, Some(usage)),
                },
                ReplyEvent::Failed(error) => return Err(error.to_string().into()),
                _ => {}
            }
        }
        self.events = events;
        Ok(())
    }

    /// A speaker's token: the first one starts its voice, later ones are needed at its rate.
    fn hear(&mut self, reply_id: ReplyId, tokens: u32) {
        let Some(voice) = self.voices.get_mut(&reply_id) else { return };
        let since = *voice.since.get_or_insert_with(Instant::now);
        let needed_seconds = f64::from(voice.tokens) / f64::from(VOICE_RATE);
        voice.tokens += tokens;
        self.row.late.add((since.elapsed().as_secs_f64() - needed_seconds) * 1e3);
    }
}
