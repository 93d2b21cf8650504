//! An engine with a tiny model, and a host that talks to it at random.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde_json::json;
use walla_doubles::synth::{self, Dialect, Mixture, Model};
use walla_record::{End, Recorder, Recording};
use walla_runtime::{
    ActionSet, ActionSpec, Actions, AgentId, AgentSpec, AskOptions, Command, Constraint,
    ConversationEdit, Detail, Engine, EngineClient, EngineOptions, Event, FrameBudget, ModelSource,
    Notes, Pacing, Prompt, ReplyEvent, ReplyId, Speaker, Turn,
};
use walla_types::{Sampling, TokenId};

/// Longer than any session takes.
pub const TIMEOUT: Duration = Duration::from_secs(120);

const OPEN: &str = "<tool_call>";

const TEMPLATE: &str = "{% for m in messages %}\
    <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A sequence of numbers from a seed: splitmix64 (Steele, Lea, Flood 2014).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// A tiny model with random weights, which can call actions.
pub fn model(seed: u64) -> &'static [u8] {
    static MODELS: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    let models = MODELS.get_or_init(|| {
        [7, 8].map(|seed| {
            let dialect = Dialect { template: TEMPLATE, special: &[OPEN, "</tool_call>"] };
            synth::write_dialect(&Model::TINY, Mixture::Q8_0, seed, &dialect, Vec::new())
                .expect("a vector takes everything")
        })
    });
    &models[usize::from(seed != 7)]
}

pub fn options() -> EngineOptions {
    EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(8),
        context_tokens: 256,
        budget: FrameBudget::Unlimited,
        ..EngineOptions::new(ModelSource::Static(model(7)))
    }
}

/// Other buckets, threads and slots than [`options`].
pub fn other_options() -> EngineOptions {
    EngineOptions {
        threads: Some(2),
        max_agents: Some(3),
        max_rows: Some(24),
        max_prefill_tokens: Some(7),
        background_prefill: false,
        ..options()
    }
}

pub fn client(options: EngineOptions, pacing: Pacing) -> impl EngineClient {
    Engine::start(options).expect("valid options").client(pacing).expect("a client")
}

pub fn recorder(path: &std::path::Path, options: EngineOptions) -> Recorder {
    Recorder::new(path, client(options, Pacing::PerFrame { steps: 1 })).expect("a recording")
}

fn opening_token() -> TokenId {
    static TOKEN: OnceLock<TokenId> = OnceLock::new();
    *TOKEN.get_or_init(|| {
        options().tokenizer().expect("a tokenizer").special_token(OPEN).expect("the model has it")
    })
}

pub fn actions() -> Actions {
    let give = json!({"type": "object", "properties": {
        "item": {"enum": ["nails", "horseshoe"]}}, "required": ["item"]});
    let give = ActionSpec::new("give", "Hands an item over.", &give).expect("an action");
    Actions::new(ActionSet::new([give]).expect("a set"))
}

/// An agent that speaks a few words.
pub fn speaker(seed: u64) -> AgentSpec {
    let sampling = Sampling::builder().temperature(1.0).top_k(0).top_p(1.0).min_p(0.0).seed(seed);
    AgentSpec {
        sampling: sampling.build().expect("valid"),
        max_reply_tokens: 24,
        ..AgentSpec::new(format!("You are agent {seed}."))
    }
}

/// A spec of any kind.
fn any_spec(dice: &mut Dice) -> AgentSpec {
    let mut spec = speaker(dice.below(1_000));
    match dice.below(5) {
        0 => spec.constraint = Some(Constraint::choice(["yes", "no", "perhaps"])),
        1 => {
            let sampling = spec.sampling.to_builder().bias(opening_token(), 6.0);
            spec.sampling = sampling.build().expect("valid");
            spec.actions = Some(actions());
        }
        2 => spec.stop_strings = vec!["e".into(), "th".into()],
        _ => {}
    }
    spec
}

/// A host that sends commands at random.
pub struct Host<'a> {
    pub client: &'a dyn EngineClient,
    pub dice: Dice,
    pub agents: Vec<AgentId>,
    /// Open replies.
    pub open: HashMap<ReplyId, AgentId>,
    /// Speech of all replies.
    pub heard: HashMap<ReplyId, String>,
    pub ended: Vec<(ReplyId, AgentId)>,
    pub events: Vec<Event>,
}

impl<'a> Host<'a> {
    pub fn new(client: &'a dyn EngineClient, seed: u64) -> Self {
        let (agents, ended, events) = (Vec::new(), Vec::new(), Vec::new());
        let (open, heard, dice) = (HashMap::new(), HashMap::new(), Dice(seed));
        Self { client, dice, agents, open, heard, ended, events }
    }

    pub fn send(&self, command: Command) {
        self.client.try_send(command).expect("the queue has room");
    }

    pub fn add(&mut self, spec: AgentSpec) -> AgentId {
        let agent = AgentId::unique();
        self.agents.push(agent);
        self.send(Command::AddAgent { agent, spec: Box::new(spec) });
        agent
    }

    pub fn ask(&mut self, agent: AgentId, prompt: Prompt, options: AskOptions) -> ReplyId {
        let reply_id = ReplyId::unique();
        self.open.insert(reply_id, agent);
        self.send(Command::Ask { agent, reply_id, prompt, options });
        reply_id
    }

    pub fn chat(&mut self, agent: AgentId, text: &str) -> ReplyId {
        self.ask(agent, Prompt::Chat(text.into()), AskOptions::default())
    }

    /// Grants a frame and receives events.
    pub fn frame(&mut self) {
        self.client.frame();
        std::thread::sleep(Duration::from_micros(300));
        let before = self.events.len();
        while self.client.try_recv_many(64, &mut self.events) > 0 {}
        for Event { agent, reply_id, what } in &self.events[before..] {
            assert!(!matches!(what, ReplyEvent::Logged(_)), "the recorder keeps it");
            if let ReplyEvent::Delta { text, .. } = what {
                self.heard.entry(*reply_id).or_default().push_str(text);
            }
            if what.is_terminal() {
                self.open.remove(reply_id).expect("one end");
                self.ended.push((*reply_id, *agent));
            }
        }
    }

    /// Runs frames until all replies have ended.
    pub fn finish(&mut self) {
        let begun = Instant::now();
        while !self.open.is_empty() {
            assert!(begun.elapsed() < TIMEOUT, "no end of {:?}", self.open);
            self.frame();
        }
    }

    fn any_agent(&mut self) -> Option<AgentId> {
        let count = self.agents.len() as u64;
        (count > 0).then(|| self.agents[self.dice.below(count) as usize])
    }

    /// A command at random.
    pub fn act(&mut self) {
        let Some(agent) = self.any_agent().filter(|_| !self.dice.one_in(12)) else {
            let spec = any_spec(&mut self.dice);
            self.add(spec);
            return;
        };
        match self.dice.below(20) {
            0..6 => {
                let question = format!("question {}", self.dice.below(100));
                let options = self.any_options();
                self.ask(agent, Prompt::Chat(question), options);
            }
            6 => _ = self.ask(agent, Prompt::Again, AskOptions::default()),
            7 => _ = self.ask(agent, Prompt::Continue, AskOptions::default()),
            8..11 => {
                let open = self.open.iter().min().map(|(reply, agent)| (*reply, *agent));
                if let Some((reply_id, agent)) = open {
                    self.send(Command::Cancel { agent, reply_id });
                }
            }
            11 => {
                let open = self.open.iter().min().map(|(reply, agent)| (*reply, *agent));
                if let Some((reply_id, agent)) = open {
                    let heard_bytes = self.dice.below(12) as u32;
                    self.send(Command::CancelHeard { agent, reply_id, heard_bytes });
                }
            }
            12 => {
                if let Some(&(reply_id, agent)) = self.ended.last() {
                    let heard_bytes = self.dice.below(12) as u32;
                    self.send(Command::CancelHeard { agent, reply_id, heard_bytes });
                }
            }
            13 => {
                let copy = AgentId::unique();
                self.agents.push(copy);
                let spec = self.dice.one_in(3).then(|| Box::new(any_spec(&mut self.dice)));
                self.send(Command::ForkAgent { agent: copy, source: agent, spec });
            }
            14 => {
                let edit = match self.dice.below(3) {
                    0 => ConversationEdit::Rewind { turns: 1 + self.dice.below(3) as u32 },
                    1 => ConversationEdit::Text { turns_after: 0, text: "Hm.".into() },
                    _ => {
                        let source = self.any_agent().unwrap_or(agent);
                        ConversationEdit::CopyOf { source }
                    }
                };
                self.send(Command::EditConversation { agent, edit });
            }
            15 | 16 => {
                let turns = vec![Turn::new(Speaker::Observation, "It rains.")];
                self.send(Command::AppendTurns { agent, turns });
            }
            17 => {
                let spec = Box::new(any_spec(&mut self.dice));
                self.send(Command::ChangeAgent { agent, spec });
            }
            18 => {
                let turns = vec![Turn::new(Speaker::User, "Who are you?")];
                self.send(Command::SetConversation { agent, turns });
            }
            _ if self.agents.len() > 3 => {
                self.agents.retain(|known| *known != agent);
                self.ended.retain(|(_, of)| *of != agent);
                self.send(Command::RemoveAgent { agent });
            }
            _ => self.send(Command::SetDetail { agent, detail: Detail::Reduced }),
        }
    }

    fn any_options(&mut self) -> AskOptions {
        match self.dice.below(6) {
            0 => AskOptions::seed(self.dice.roll()),
            1 => AskOptions::notes(Notes::new(["The player has paid."])),
            2 => AskOptions::constraint(Constraint::regex("[a-c]{3,6}")),
            3 => {
                let opening = Some(Arc::new("Well, ".to_owned()));
                AskOptions { opening, ..AskOptions::default() }
            }
            _ => AskOptions::default(),
        }
    }
}

/// Records a session of this many commands.
pub fn record(path: &std::path::Path, seed: u64, commands: u32) {
    let recorder = recorder(path, options());
    let mut host = Host::new(&recorder, seed);
    for _ in 0..commands {
        host.act();
        for _ in 0..host.dice.below(10) {
            host.frame();
        }
    }
    host.finish();
    assert!(recorder.status().is_recording(), "{:?}", recorder.status().error());
}

/// The recording of a session.
pub fn recorded(seed: u64, commands: u32) -> Recording {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session.walla");
    record(&path, seed, commands);
    let recording = ended(&path);
    assert!(recording.is_complete());
    recording
}

/// The recording of a recorder that was dropped. The drop waits for the disk for two seconds, and
/// on a busy machine the end may come later.
pub fn ended(path: &std::path::Path) -> Recording {
    let begun = Instant::now();
    loop {
        let recording = Recording::open(path).expect("a recording");
        if recording.end != End::CutOff {
            return recording;
        }
        assert!(begun.elapsed() < TIMEOUT, "no end");
        std::thread::sleep(Duration::from_millis(1));
    }
}
