//! Many constrained replies, each validated by another library.

use std::error::Error;
use std::time::Instant;

use serde_json::{Value, json};
use walla_runtime::{
    ActionPolicy, Actions, AgentSpec, AskOptions, CallError, CallFormat, Client, Command,
    Constraint, Engine, FinishReason, Prompt,
};
use walla_types::{LogitBias, Sampling};

use super::host::{Heard, Host};
use super::models::MARKERS;
use super::schemas::{actions, schema, set};

/// Agents that reply at the same time.
pub const AGENTS: usize = 64;

/// Counts of the replies of one model.
#[derive(Debug, Default)]
pub struct Counts {
    pub replies: u64,
    pub finished: u64,
    pub valid: u64,
    /// Replies that a limit of tokens or of the context cut.
    pub cut: u64,
    pub calls: u64,
    pub calls_valid: u64,
    pub tokens: u64,
    pub forced: u64,
    pub seconds: f64,
    /// Replies, or calls in them, that are not valid.
    pub faults: u64,
    /// The first of them.
    pub first_faults: Vec<String>,
}

impl Counts {
    pub fn json(&self, model: &str, format: &str) -> Value {
        json!({
            "model": model, "format": format, "replies": self.replies, "finished": self.finished,
            "valid": self.valid, "cut": self.cut, "calls": self.calls,
            "calls_valid": self.calls_valid, "tokens": self.tokens, "forced": self.forced,
            "seconds": (self.seconds * 10.0).round() / 10.0,
        })
    }

    pub fn line(&self, model: &str, format: &str) -> String {
        let Self { replies, finished, valid, cut, calls, calls_valid, tokens, forced, .. } = self;
        format!(
            "| {model} | {format} | {replies} | {finished} | {valid} | {cut} | {calls} | \
             {calls_valid} | {tokens} | {forced} | {:.1} |",
            self.seconds
        )
    }

    fn fault(&mut self, what: String) {
        self.faults += 1;
        if self.first_faults.len() < 10 {
            self.first_faults.push(what);
        }
    }
}

/// Kind of an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Schema,
    Call(ActionPolicy),
}

impl Kind {
    /// Half of the asks have a schema, a quarter require a call, and a quarter permit one.
    fn of(ask: u64) -> Self {
        match ask % 4 {
            0 | 1 => Self::Schema,
            2 => Self::Call(ActionPolicy::Required),
            _ => Self::Call(ActionPolicy::Auto),
        }
    }
}

fn spec(engine: &Engine, n: u64, max_tokens: u32) -> Result<AgentSpec, Box<dyn Error>> {
    let mut sampling = Sampling::builder().temperature(1.1).min_p(0.0).seed(n);
    let open = engine.tokenizer().and_then(|tokenizer| {
        tokenizer.special_token(MARKERS[0]).or_else(|| {
            let tokens = 0..tokenizer.vocab_size() as u32;
            tokens
                .map(walla_types::TokenId)
                .find(|token| tokenizer.text_bytes(*token) == MARKERS[0].as_bytes())
        })
    });
    // Now and then, a model with random weights opens a call.
    if let Some(LogitBias { token, bias }) = open.map(|token| LogitBias { token, bias: 4.0 }) {
        sampling = sampling.bias(token, bias);
    }
    Ok(AgentSpec {
        sampling: sampling.build()?,
        max_reply_tokens: max_tokens,
        actions: Some(Actions { max_calls: 2, ..Actions::new(set(&actions(n))?) }),
        ..AgentSpec::new(format!("You are number {n} of the town."))
    })
}

/// Asks `replies` times. The engine has slots for [`AGENTS`].
pub fn measure(
    engine: &Engine,
    client: Client,
    replies: u64,
    max_tokens: u32,
) -> Result<Counts, Box<dyn Error>> {
    let mut host = Host::new(engine, client)?;
    let mut agents = Vec::new();
    for n in 0..AGENTS as u64 {
        agents.push(host.add(spec(engine, n, max_tokens)?)?);
    }
    let mut counts = Counts::default();
    let start = Instant::now();
    let mut next = |host: &mut Host<'_>, place: usize, ask: u64| {
        let agent = agents[place];
        // A short prompt: no reply needs the earlier ones.
        host.send(Command::SetConversation { agent, turns: Vec::new() })?;
        let options = match Kind::of(ask) {
            Kind::Schema => AskOptions::constraint(Constraint::json_schema_value(&schema(ask / 2))),
            Kind::Call(policy) => AskOptions { actions: Some(policy), ..AskOptions::default() },
        };
        host.ask((place, agent), ask, Prompt::Chat("What now?".into()), options)
    };
    let mut heard = |place: usize, reply: Heard| counts.take(place, &reply);
    host.serve(AGENTS, replies, &mut next, &mut heard)?;
    counts.seconds = start.elapsed().as_secs_f64();
    Ok(counts)
}

impl Counts {
    /// Takes a reply of the agent `place`.
    fn take(&mut self, place: usize, heard: &Heard) {
        let (usage, faults) = (heard.usage, self.faults);
        self.replies += 1;
        self.tokens += u64::from(usage.reply_tokens + usage.call_tokens);
        self.forced += u64::from(usage.forced_tokens);
        let is_limit =
            matches!(heard.reason, Some(FinishReason::Length | FinishReason::ContextFull));
        let is_cut = match Kind::of(heard.ask) {
            Kind::Schema if is_limit => true,
            Kind::Schema => {
                match conforms(&heard.text, &schema(heard.ask / 2)) {
                    Ok(()) if heard.reason == Some(FinishReason::EndOfTurn) => {}
                    Ok(()) => self.fault(format!("its end: {heard:?}")),
                    Err(fault) => self.fault(fault),
                }
                false
            }
            Kind::Call(policy) => self.take_calls(place, policy, heard) && is_limit,
        };
        self.cut += u64::from(is_cut);
        self.finished += u64::from(!is_cut);
        self.valid += u64::from(!is_cut && self.faults == faults);
    }

    /// Returns whether the reply lacks a call, or ended within one.
    fn take_calls(&mut self, place: usize, policy: ActionPolicy, heard: &Heard) -> bool {
        let actions = actions(place as u64);
        for call in &heard.calls {
            self.calls += 1;
            let action = actions.iter().find(|(name, ..)| *name == call.name);
            let arguments = Value::from(call.arguments.clone());
            let result =
                action.ok_or_else(|| "no such action".to_owned()).and_then(|(_, _, schema)| {
                    let validator = jsonschema::validator_for(schema).map_err(|e| e.to_string())?;
                    validator.validate(&arguments).map_err(|error| error.to_string())
                });
            match result {
                Ok(()) => self.calls_valid += 1,
                Err(error) => self.fault(format!("{call:?}: {error}")),
            }
        }
        if heard.text.contains(MARKERS[0]) || heard.text.contains("\"arguments\"") {
            self.fault(format!("a call was spoken: {heard:?}"));
        }
        let is_limit =
            matches!(heard.reason, Some(FinishReason::Length | FinishReason::ContextFull));
        let mut is_cut = policy == ActionPolicy::Required && heard.calls.is_empty();
        for refused in &heard.refused {
            match refused.call.error {
                CallError::Unfinished | CallError::TooLong { .. } if is_limit => is_cut = true,
                _ => self.fault(format!("{refused:?}")),
            }
        }
        if is_cut && !is_limit {
            self.fault(format!("no call: {heard:?}"));
        }
        is_cut
    }
}

fn conforms(text: &str, schema: &Value) -> Result<(), String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("{text}: {error}"))?;
    let validator = jsonschema::validator_for(schema).map_err(|error| error.to_string())?;
    validator.validate(&value).map_err(|error| format!("{text}: {error}"))
}

/// The format of the loaded model's calls.
pub fn format_of(engine: &Engine) -> String {
    let Some(tokenizer) = engine.tokenizer() else { return String::new() };
    format!("{:?}", CallFormat::of(None, tokenizer))
}
