//! The core driven by hand: a virtual clock, an inline device, no thread. A test is a function of
//! its seed.

mod actions;
mod background;
mod budget;
mod cache_files;
mod clients;
mod constraints;
mod conversations;
mod deadlines;
mod determinism;
mod fallback;
mod faults;
mod files;
mod kv_pages;
mod limits;
mod logged;
mod masks;
mod pause;
mod prompts;
mod reasoning;
mod replies;
mod scores;
mod simulation;
mod simulation_copies;
mod simulation_kit;
mod slots;
mod snapshots;
mod stall;
mod templates;
mod text;
mod time;
mod turns;
mod unmarked;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use walla_cpu::{CpuBackend, CpuOptions};
use walla_device::{DeviceError, Registry};
use walla_doubles::synth::{self, DeltaNets, Mixture, Model};
use walla_plan::{CostModel, Governor, GovernorOptions, LinearCost, StepCost, StepWork};
use walla_types::{Sampling, TokenId};

use super::{Core, Source};
use crate::api::{
    AgentId, AgentSpec, AskOptions, Call, Command, Event, FinishReason, FirstTokenTimes, Pacing,
    Prompt, RefusedCall, ReplyError, ReplyEvent, ReplyId, Score, Usage,
};
use crate::clock::Clock;
use crate::engine_core::{Advance, ClientKey, EngineCore};
use crate::options::{EngineError, EngineOptions, FrameBudget, ModelSource};

/// The only client of most tests.
const HOST: ClientKey = ClientKey(0);

/// Microseconds of a 60 Hz frame.
const FRAME_MICROS: u64 = 16_667;

/// A small model with random weights: its text is meaningless but reproducible.
fn model() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        synth::write(&Model::TINY, Mixture::Q8_0, 7, Vec::new()).expect("a vector takes everything")
    })
}

/// As [`model`], with recurrent layers: gated DeltaNet in every second layer.
fn recurrent_model() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let shape = Model {
            width: 64,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            hidden: 128,
            vocab: 320,
            context_train: 512,
            delta_nets: Some(DeltaNets {
                key_heads: 1,
                value_heads: 2,
                head_dim: 32,
                taps: 4,
                attention_interval: 2,
            }),
            ..Model::QWEN3_5_0_8B
        };
        synth::write(&shape, Mixture::Q8_0, 7, Vec::new()).expect("a vector takes everything")
    })
}

/// The device's error in an engine's.
fn device_error(error: &EngineError) -> Option<&DeviceError> {
    let EngineError::Device(source) = error else { return None };
    source.downcast_ref()
}

fn options() -> EngineOptions {
    EngineOptions {
        context_tokens: 128,
        max_agents: Some(8),
        max_rows: Some(32),
        max_prefill_tokens: Some(16),
        inline_text: true,
        // Its own tests and some simulations set it.
        background_prefill: false,
        // Text does not depend on the budget, but step counts do.
        budget: FrameBudget::Unlimited,
        ..EngineOptions::new(ModelSource::Static(model()))
    }
}

/// Options of a [`recurrent_model`].
fn recurrent() -> EngineOptions {
    EngineOptions {
        model: ModelSource::Static(recurrent_model()),
        context_tokens: 512,
        max_agents: Some(12),
        ..options()
    }
}

fn inline_cpu() -> Registry {
    Registry::new().with(CpuBackend::new(CpuOptions { inline: true, ..CpuOptions::default() }))
}

/// 300 µs per step, 20 µs per row.
const COST: LinearCost = LinearCost {
    step_micros: 300.0,
    row_micros: 20.0,
    context_token_micros: 0.0,
    prefill_token_micros: 0.0,
};

fn as_expected(work: StepWork) -> u64 {
    (COST.predict_micros(work) * 1e3) as u64
}

/// Events of one reply.
#[derive(Clone, Debug, Default, PartialEq)]
struct Heard {
    /// The client that asked.
    client: Option<ClientKey>,
    started: u32,
    text: String,
    tokens: u32,
    /// Text between reasoning markers, and its tokens.
    reasoning: String,
    reasoning_tokens: u32,
    calls: Vec<Call>,
    refused: Vec<RefusedCall>,
    scores: Vec<Score>,
    ends: Vec<Result<FinishReason, ReplyError>>,
    usage: Usage,
}

/// A core, its clock and the received events.
struct Rig {
    core: Core,
    /// The model that the core was loaded from.
    source: Arc<Source>,
    now_micros: u64,
    names: u64,
    heard: HashMap<ReplyId, Heard>,
    /// Free slots of the host's event queue, if it is bounded.
    room: Option<usize>,
}

impl Rig {
    fn new(options: &EngineOptions, registry: &Registry, pacing: Pacing) -> Self {
        let go_on = &mut |_: f32| ControlFlow::Continue(());
        let (source, file) = Source::open(options).expect("the file is sound");
        let clock = Clock::real();
        let core = Core::load_from(&source, &file, options, registry, &clock, go_on);
        let mut core = core.expect("the model loads");
        core.add_client(HOST, pacing);
        Self { core, source, now_micros: 0, names: 0, heard: HashMap::new(), room: None }
    }

    /// With a budget per frame, on a device with simulated step times.
    fn budgeted(options: &EngineOptions, budget_micros: u32, pacing: Pacing) -> Self {
        let mut rig = Self::new(options, &inline_cpu(), pacing);
        let options = GovernorOptions {
            budget_micros: Some(budget_micros),
            max_launch_micros: None,
            ..GovernorOptions::default()
        };
        rig.core.budget.governor = Governor::new(options, StepCost::from_linear(COST));
        rig.core.budget.pretend(as_expected);
        rig
    }

    fn free() -> Self {
        Self::new(&options(), &inline_cpu(), Pacing::FreeRunning)
    }

    fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    fn agent(&mut self, spec: AgentSpec) -> AgentId {
        let agent = AgentId(self.name());
        self.command(Command::AddAgent { agent, spec: Box::new(spec) });
        agent
    }

    fn command(&mut self, command: Command) {
        self.command_of(HOST, command);
    }

    fn command_of(&mut self, client: ClientKey, command: Command) {
        self.core.command(client, command, self.now_micros);
    }

    fn ask(&mut self, agent: AgentId, prompt: Prompt) -> ReplyId {
        self.ask_of(HOST, agent, prompt)
    }

    fn ask_of(&mut self, client: ClientKey, agent: AgentId, prompt: Prompt) -> ReplyId {
        let reply_id = self.expected(client);
        self.command_of(client, Command::ask(agent, reply_id, prompt));
        reply_id
    }

    fn ask_with(&mut self, agent: AgentId, prompt: Prompt, options: AskOptions) -> ReplyId {
        let reply_id = self.expected(HOST);
        self.command(Command::Ask { agent, reply_id, prompt, options });
        reply_id
    }

    /// The id of a reply to a client.
    fn expected(&mut self, client: ClientKey) -> ReplyId {
        let reply_id = ReplyId(self.name());
        self.heard.insert(reply_id, Heard { client: Some(client), ..Heard::default() });
        reply_id
    }

    fn advance(&mut self) -> Advance {
        let Self { core, heard, room, now_micros, .. } = self;
        let mut emit = |client: ClientKey, event: Event| {
            let asked_by = heard.get(&event.reply_id).and_then(|reply| reply.client);
            assert_eq!(asked_by, Some(client), "whoever asked hears it: {event:?}");
            if let Some(room) = room {
                if *room == 0 {
                    return Err(event);
                }
                *room -= 1;
            }
            hear(heard, event);
            Ok(())
        };
        *now_micros += 10;
        core.advance(*now_micros, &mut emit).expect("the device lives")
    }

    /// One frame of the host.
    fn frame(&mut self) {
        self.now_micros += FRAME_MICROS;
        self.core.frame(HOST, self.now_micros);
        while self.advance() == Advance::Again {}
    }

    /// Advances until the core is idle.
    fn run(&mut self) {
        for _ in 0..100_000 {
            if self.advance() == Advance::Idle {
                return;
            }
        }
        panic!("the core does not come to rest");
    }

    /// Lets the reply of an agent begin with a text, instead of tokens that the model draws.
    fn begin_with(&mut self, agent: AgentId, text: &str) {
        let slot = self.core.agents.slot_of(agent).expect("it has a slot");
        let has_begun = |rig: &Self| {
            let reply = rig.core.agents.get(slot).and_then(|agent| agent.reply.as_ref());
            reply.is_some_and(|reply| reply.policy.is_some())
        };
        while !has_begun(self) {
            self.advance();
        }
        let text = self.core.model_text.tokenizer.encode_continuation(text).expect("short");
        let Self { core, heard, now_micros, .. } = self;
        let mut emit = |_: ClientKey, event: Event| {
            hear(heard, event);
            Ok(())
        };
        core.take_forced(slot, &text, *now_micros, &mut emit);
    }

    fn reply(&self, reply_id: ReplyId) -> &Heard {
        &self.heard[&reply_id]
    }

    /// Asserts that every reply has ended once, and that its deltas count no token that its usage
    /// does not. Tokens without text at its end (`<|im_start|>`) are in no delta: `text.rs` tests
    /// that.
    fn assert_all_ended(&self) {
        for (reply_id, heard) in &self.heard {
            assert_eq!(heard.ends.len(), 1, "{reply_id:?} ends once: {heard:?}");
            if heard.ends[0].is_ok() {
                assert!(heard.tokens <= heard.usage.reply_tokens, "{reply_id:?}: {heard:?}");
                let counted = heard.usage.reasoning_tokens;
                assert!(heard.reasoning_tokens <= counted, "{reply_id:?}: {heard:?}");
            }
        }
    }
}

fn hear(heard: &mut HashMap<ReplyId, Heard>, event: Event) {
    let reply = heard.entry(event.reply_id).or_default();
    assert!(reply.ends.is_empty(), "nothing follows the end: {event:?}");
    match event.what {
        ReplyEvent::Started { .. } => reply.started += 1,
        ReplyEvent::Delta { text, tokens } => {
            reply.text.push_str(&text);
            reply.tokens += tokens;
        }
        ReplyEvent::Reasoning { text, tokens } => {
            reply.reasoning.push_str(&text);
            reply.reasoning_tokens += tokens;
        }
        ReplyEvent::Call(call) => reply.calls.push(*call),
        ReplyEvent::CallRefused(call) => reply.refused.push(*call),
        ReplyEvent::Score(score) => reply.scores.push(score),
        ReplyEvent::Token(_) | ReplyEvent::Logged(_) => {}
        ReplyEvent::Finished { reason, usage } => {
            let FirstTokenTimes { waiting_micros, encoding_micros, prefill_micros, decode_micros } =
                usage.first_token;
            let parts = waiting_micros + encoding_micros + prefill_micros + decode_micros;
            assert_eq!(parts, usage.first_token_micros, "{usage:?}");
            assert!(parts <= usage.total_micros.max(1), "{usage:?}");
            reply.usage = usage;
            reply.ends.push(Ok(reason));
        }
        ReplyEvent::Failed(error) => reply.ends.push(Err(error)),
    }
}

fn tokens(text: &str) -> Prompt {
    Prompt::Tokens(text.bytes().map(|byte| TokenId(u32::from(byte))).collect())
}

/// Tokens of the agent's sequence behind its prompt of `prompt` tokens.
fn sampled_tokens(rig: &Rig, agent: AgentId, prompt: usize) -> Vec<TokenId> {
    let agent = rig
        .core
        .agents
        .get(rig.core.agents.slot_of(agent).expect("it has a slot"))
        .expect("it lives");
    agent.sequence.tokens()[prompt..].to_vec()
}

/// An agent that speaks up to `max_reply_tokens` tokens.
fn speaker(seed: u64, max_reply_tokens: u32) -> AgentSpec {
    let sampling = Sampling::builder().temperature(1.0).top_k(0).min_p(0.0).top_p(1.0).seed(seed);
    AgentSpec {
        sampling: sampling.build().expect("valid"),
        max_reply_tokens,
        ..AgentSpec::new("You are a test.")
    }
}

/// The reply of an agent without other agents in the batch.
fn alone(options: &EngineOptions, spec: AgentSpec, prompt: &str) -> Heard {
    let mut rig = Rig::new(options, &inline_cpu(), Pacing::FreeRunning);
    let agent = rig.agent(spec);
    let reply_id = rig.ask(agent, tokens(prompt));
    rig.run();
    rig.reply(reply_id).clone()
}
