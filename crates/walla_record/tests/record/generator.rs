//! Commands and events of all kinds.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use walla_record::{EngineInfo, Entry, Record};
use walla_runtime::{
    ActionError, ActionPolicy, ActionSet, ActionSpec, Actions, AfterFailure, AgentId, AgentSpec,
    AskOptions, Call, CallError, CallId, CallResult, CancelAfter, Command, Constraint,
    ConstraintKind, ContextPolicy, ConversationEdit, Detail, Event, FinishReason, FirstTokenTimes,
    InlineText, Logged, MalformedCall, Notes, Prompt, RefusedCall, RemoteError, ReplyError,
    ReplyEvent, ReplyId, ReplyInProgress, Route, Score, Speaker, TimeLimit, TokenLogprobs,
    TokenRun, Turn, UnmarkedCalls, Unsupported, Usage,
};
use walla_types::{Sampling, TokenId, TokenMask};

use crate::kit::Dice;

impl Dice {
    fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }

    fn number(&mut self) -> u32 {
        (self.roll() >> (32 + self.below(32))) as u32
    }

    fn long(&mut self) -> u64 {
        self.roll() >> self.below(64)
    }

    fn float(&mut self) -> f32 {
        self.below(1_000) as f32 / 1_000.0
    }

    fn text(&mut self) -> String {
        let words = ["", "nails", "Grüße", "山", "\n", "\"quoted\"", "\u{0}", "</s>", "🙂"];
        (0..self.below(6)).map(|_| self.pick(&words)).collect::<Vec<_>>().join(" ")
    }

    fn texts(&mut self) -> Vec<String> {
        (0..self.below(4)).map(|_| self.text()).collect()
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.one_in(2) { Some(make(self)) } else { None }
    }

    fn tokens(&mut self) -> Vec<TokenId> {
        (0..self.below(5)).map(|_| TokenId(self.number())).collect()
    }
}

fn turns(dice: &mut Dice, ids: &mut Ids) -> Vec<Turn> {
    let speakers = [
        Speaker::User,
        Speaker::Agent,
        Speaker::Observation,
        Speaker::Action,
        Speaker::ActionResult,
    ];
    let mut turn = |dice: &mut Dice| {
        let call = dice.maybe(|dice| call_id(dice, ids));
        let name = dice.maybe(|dice| dice.text().into());
        Turn { call, name, ..Turn::new(dice.pick(&speakers), dice.text()) }
    };
    (0..dice.below(4)).map(|_| turn(dice)).collect()
}

fn call_id(dice: &mut Dice, ids: &mut Ids) -> CallId {
    CallId { reply_id: ids.reply(dice), index: dice.below(3) as u32 }
}

fn sampling(dice: &mut Dice) -> Sampling {
    let mut builder = Sampling::builder()
        .temperature(dice.float() * 2.0)
        .top_k(dice.number())
        .top_p(dice.float().max(0.01))
        .min_p(dice.float())
        .repetition_penalty(1.0 + dice.float())
        .presence_penalty(dice.float() - 0.5)
        .frequency_penalty(dice.float() - 0.5)
        .penalty_window(dice.below(257) as u32)
        .seed(dice.long())
        .candidates(dice.below(17) as u32);
    for token in dice.tokens() {
        let bias = if dice.one_in(3) { f32::NEG_INFINITY } else { dice.float() };
        builder = builder.bias(token, bias);
    }
    let mask = dice.maybe(|dice| {
        let words: Vec<u32> = (0..=dice.below(9)).map(|_| dice.number() | 1).collect();
        Arc::new(TokenMask::from_words(words).expect("a token is allowed"))
    });
    builder.allowed_tokens(mask).build().expect("valid")
}

fn constraint(dice: &mut Dice) -> Constraint {
    match dice.below(4) {
        0 => Constraint::json_schema(dice.text()),
        1 => Constraint::regex(dice.text()),
        2 => Constraint::choice(dice.texts()),
        _ => Constraint::lark(dice.text()),
    }
}

fn policy(dice: &mut Dice) -> ActionPolicy {
    dice.pick(&[ActionPolicy::Auto, ActionPolicy::Required, ActionPolicy::Off])
}

fn actions(dice: &mut Dice) -> Actions {
    let schema = json!({"type": "object", "required": ["item"], "properties": {
        "item": {"type": "string", "description": "Which one."},
        "to": {"type": ["string", "null"]},
        "kinds": {"type": "array", "items": {"type": "string"}},
        "count": {"type": "integer", "minimum": 1, "maximum": 9, "default": 2},
        "place": {"type": "object", "properties": {"x": {"type": "number"}}},
    }});
    let give = ActionSpec::new("give", "Hands an item over.", &schema).expect("an action");
    let none = dice.pick(&["item", "to", "kinds"]);
    let specs = [
        ActionSpec::new("wave", "", &json!({"type": "null"})).expect("an action"),
        give.clone(),
        give.with_choices("item", ["nails", "a \"sword\""]).expect("choices"),
        give.with_unlisted_choices("kinds", ["nails", "a \"sword\""]).expect("choices"),
        give.with_choices("item", ["nails", "sword"])
            .and_then(|give| give.with_unlisted_choices("item", ["sword"]))
            .and_then(|give| give.with_unlisted_choices("to", [""; 0]))
            .expect("choices"),
        // Without choices the action is not possible.
        give.with_choices(none, [""; 0]).expect("choices"),
    ];
    let spec = dice.pick(&specs);
    let mut set = vec![spec];
    set.extend(dice.maybe(|_| {
        ActionSpec::new("bow", "Bows.", &json!({"type": "object"})).expect("an action")
    }));
    let fault = |dice: &mut Dice| Arc::new(ActionError::Refused { reason: dice.text() });
    Actions {
        policy: policy(dice),
        max_calls: dice.number(),
        max_rounds: dice.number(),
        max_call_bytes: dice.number(),
        unmarked: if dice.one_in(2) { UnmarkedCalls::Call } else { UnmarkedCalls::Refuse },
        fault: dice.maybe(fault),
        ..Actions::new(ActionSet::new(set).expect("a set"))
    }
}

fn route(dice: &mut Dice) -> Route {
    let mut route = Route::default();
    route.engine = dice.maybe(|dice| dice.text().into());
    route.substitute = dice.maybe(|dice| dice.text().into());
    route.max_first_token = dice.maybe(|dice| Duration::from_nanos(dice.long()));
    route.after_failure = dice.pick(&[AfterFailure::End, AfterFailure::Continue]);
    route.reply_in_progress = dice.pick(&[ReplyInProgress::Finish, ReplyInProgress::Cancel]);
    route
}

fn detail(dice: &mut Dice) -> Detail {
    dice.pick(&[Detail::Full, Detail::Reduced, Detail::Background])
}

fn spec(dice: &mut Dice, ids: &mut Ids) -> AgentSpec {
    let policies = [ContextPolicy::DropOldest, ContextPolicy::Refuse, ContextPolicy::Stop];
    AgentSpec {
        persona: dice.text(),
        sampling: sampling(dice),
        max_reply_tokens: dice.number(),
        thinking: dice.one_in(2),
        max_reasoning_tokens: dice.number(),
        voice_rate: dice.maybe(Dice::float),
        priority: dice.number() as i32,
        detail: detail(dice),
        context_policy: dice.pick(&policies),
        stop_strings: dice.texts(),
        stop_tokens: dice.tokens(),
        constraint: dice.maybe(constraint),
        actions: dice.maybe(actions),
        route: route(dice),
        turns: turns(dice, ids),
    }
}

fn options(dice: &mut Dice) -> AskOptions {
    let cancel_after = |dice: &mut Dice| CancelAfter {
        tokens: dice.number(),
        heard_bytes: dice.pick(&[0, 7, u32::MAX]),
    };
    AskOptions {
        constraint: dice.maybe(constraint),
        actions: dice.maybe(policy),
        opening: dice.maybe(|dice| Arc::new(dice.text())),
        notes: dice.maybe(|dice| {
            let heading = dice.text().into();
            Arc::new(Notes { heading, max_tokens: dice.number(), ..Notes::new(dice.texts()) })
        }),
        seed: dice.maybe(Dice::long),
        aside: dice.one_in(2),
        max_tokens: dice.maybe(Dice::number),
        score: dice.maybe(|dice| Arc::new(dice.texts())),
        cancel_after: dice.maybe(cancel_after).map(Box::new),
    }
}

fn prompt(dice: &mut Dice, ids: &mut Ids) -> Prompt {
    match dice.below(8) {
        0 => Prompt::Chat(dice.text()),
        1 => Prompt::Continue,
        2 => Prompt::Again,
        3 => Prompt::Raw(dice.text()),
        4 => Prompt::RawTrusted(dice.text()),
        5 => {
            let mut result =
                |dice: &mut Dice| CallResult { id: call_id(dice, ids), text: dice.text() };
            Prompt::Results((0..dice.below(3)).map(|_| result(dice)).collect())
        }
        6 => Prompt::named(dice.text(), dice.text()),
        _ => Prompt::Tokens(dice.tokens()),
    }
}

/// Ids as a reader numbers them.
struct Ids {
    agents: u64,
    replies: u64,
}

impl Ids {
    fn agent(&mut self, dice: &mut Dice) -> AgentId {
        let agent = dice.below(self.agents + 1);
        self.agents = self.agents.max(agent + 1);
        AgentId(agent)
    }

    fn reply(&mut self, dice: &mut Dice) -> ReplyId {
        let reply = dice.below(self.replies + 1);
        self.replies = self.replies.max(reply + 1);
        ReplyId(reply + 1)
    }
}

fn command(dice: &mut Dice, ids: &mut Ids) -> Command {
    let agent = ids.agent(dice);
    match dice.below(13) {
        0 => Command::AddAgent { agent, spec: Box::new(spec(dice, ids)) },
        1 => Command::ChangeAgent { agent, spec: Box::new(spec(dice, ids)) },
        2 => Command::SetDetail { agent, detail: detail(dice) },
        3 => Command::SetConversation { agent, turns: turns(dice, ids) },
        4 => Command::AppendTurns { agent, turns: turns(dice, ids) },
        5 => {
            let edit = ConversationEdit::Rewind { turns: dice.number() };
            Command::EditConversation { agent, edit }
        }
        6 => {
            let (turns_after, text) = (dice.number(), dice.text());
            Command::EditConversation { agent, edit: ConversationEdit::Text { turns_after, text } }
        }
        7 => {
            let edit = ConversationEdit::CopyOf { source: ids.agent(dice) };
            Command::EditConversation { agent, edit }
        }
        8 => {
            let source = ids.agent(dice);
            let spec = dice.maybe(|dice| Box::new(spec(dice, ids)));
            Command::ForkAgent { agent, source, spec }
        }
        9 => Command::RemoveAgent { agent },
        10 => Command::Cancel { agent, reply_id: ids.reply(dice) },
        11 => {
            let reply_id = ids.reply(dice);
            Command::CancelHeard { agent, reply_id, heard_bytes: dice.number() }
        }
        _ => {
            let reply_id = ids.reply(dice);
            Command::Ask { agent, reply_id, prompt: prompt(dice, ids), options: options(dice) }
        }
    }
}

fn remote_error(dice: &mut Dice) -> RemoteError {
    let (status, message) = (dice.number() as u16, dice.text());
    match dice.below(12) {
        0 => RemoteError::Connect(message),
        1 => {
            let limits =
                [TimeLimit::Connect, TimeLimit::FirstToken, TimeLimit::NextToken, TimeLimit::Reply];
            RemoteError::TimedOut(dice.pick(&limits))
        }
        2 => RemoteError::Busy { status, message },
        3 => RemoteError::Unauthorized { status, message },
        4 => RemoteError::Refused { status, message },
        5 => RemoteError::ContextExceeded { status, message },
        6 => RemoteError::Failed { status, message },
        7 => RemoteError::Interrupted(message),
        8 => RemoteError::Protocol(message),
        9 => RemoteError::TooLarge { limit: dice.number() as usize },
        10 => RemoteError::Filtered,
        _ => RemoteError::NoKey(message),
    }
}

fn failure(dice: &mut Dice) -> ReplyError {
    let kinds = [
        ConstraintKind::JsonSchema,
        ConstraintKind::Regex,
        ConstraintKind::Choice,
        ConstraintKind::Lark,
    ];
    let features = [
        Unsupported::Constraint(dice.pick(&kinds)),
        Unsupported::Actions,
        Unsupported::RawPrompts,
        Unsupported::TokenPrompts,
        Unsupported::Openings,
        Unsupported::Biases,
        Unsupported::AllowedTokens,
        Unsupported::StopTokens,
        Unsupported::LogProbabilities,
        Unsupported::Scores,
    ];
    match dice.below(16) {
        0 => ReplyError::UnknownAgent,
        1 => ReplyError::TooManyAgents { max_agents: dice.number() },
        2 => ReplyError::Busy { waiting: dice.number() },
        3 => ReplyError::TooManyAsks {
            asks: dice.number(),
            max_asks: dice.number(),
            bytes: dice.long(),
            max_bytes: dice.long(),
        },
        4 => ReplyError::PromptTooLong {
            prompt_tokens: dice.number(),
            context_tokens: dice.number(),
        },
        5 => ReplyError::Text(dice.text()),
        6 => ReplyError::NoPages { wanted_pages: dice.number(), free_pages: dice.number() },
        7 => ReplyError::NothingAllowed,
        8 => ReplyError::NoReply,
        9 => ReplyError::NotFinite,
        10 => ReplyError::Device(dice.text()),
        11 => ReplyError::NoEngine { name: dice.text().into() },
        12 => ReplyError::Unsupported(dice.pick(&features)),
        13 => ReplyError::Remote { server: dice.text().into(), error: remote_error(dice) },
        14 => ReplyError::EngineGone(dice.text()),
        _ => ReplyError::NotRecorded { expected: dice.maybe(Dice::text), asked: dice.text() },
    }
}

fn usage(dice: &mut Dice) -> Usage {
    Usage {
        prompt_tokens: dice.number(),
        cached_tokens: dice.number(),
        reply_tokens: dice.number(),
        reasoning_tokens: dice.number(),
        call_tokens: dice.number(),
        forced_tokens: dice.number(),
        dropped_turns: dice.number(),
        first_token_micros: dice.long(),
        first_token: FirstTokenTimes {
            waiting_micros: dice.long(),
            encoding_micros: dice.long(),
            prefill_micros: dice.long(),
            decode_micros: dice.long(),
        },
        total_micros: dice.long(),
    }
}

fn inline<const N: usize>(dice: &mut Dice) -> InlineText<N> {
    let mut inline = InlineText::new();
    let _rest = inline.push(&dice.text());
    inline
}

fn event(dice: &mut Dice, ids: &mut Ids) -> Event {
    let agent = ids.agent(dice);
    if dice.one_in(13) {
        let what = ReplyEvent::Logged(Logged::Applied);
        return Event { agent, reply_id: ReplyId::NONE, what };
    }
    let reply_id = ids.reply(dice);
    let id = CallId { reply_id, index: dice.number() };
    let reasons = [
        FinishReason::EndOfTurn,
        FinishReason::Stop { index: dice.number() },
        FinishReason::StopToken,
        FinishReason::Length,
        FinishReason::ReasoningLength,
        FinishReason::CallLimit,
        FinishReason::ContextFull,
        FinishReason::Cancelled,
        FinishReason::TimedOut,
        FinishReason::Scored,
    ];
    let what = match dice.below(11) {
        0 => ReplyEvent::Started { prompt_tokens: dice.number() },
        1 => ReplyEvent::Delta { text: inline(dice), tokens: dice.number() },
        2 => ReplyEvent::Reasoning { text: inline(dice), tokens: dice.number() },
        3 => {
            let number = dice.long() as f64 / 1e9;
            let arguments = json!({"b": dice.number(), "a": [dice.text(), null], "c": number});
            let call = Call::new(id, dice.text(), &arguments.to_string());
            ReplyEvent::Call(Box::new(call.expect("an object")))
        }
        4 => {
            let errors = [
                CallError::UnknownAction { name: dice.text() },
                CallError::NotAllowed { name: dice.text() },
                CallError::TooLong { max_bytes: dice.number() as usize },
                CallError::Unfinished,
                CallError::Syntax { reason: "as recorded" },
                CallError::InvalidArgument { property: dice.text(), reason: "as recorded" },
            ];
            let call = MalformedCall { text: dice.text(), error: dice.pick(&errors) };
            ReplyEvent::CallRefused(Box::new(RefusedCall { id, call }))
        }
        5 => ReplyEvent::Token(Box::new(TokenLogprobs {
            token: TokenId(dice.number()),
            log_probability: -dice.float(),
            candidates: dice.tokens().into_iter().map(|token| (token, -0.25)).collect(),
        })),
        6 => ReplyEvent::Finished { reason: dice.pick(&reasons), usage: usage(dice) },
        7 => ReplyEvent::Failed(failure(dice)),
        8 => ReplyEvent::Logged(Logged::Begun),
        9 => ReplyEvent::Score(Score {
            index: dice.number(),
            tokens: dice.number(),
            log_probability: -dice.float(),
        }),
        _ => {
            let mut run = TokenRun::new();
            (0..dice.below(15)).for_each(|_| _ = run.push(TokenId(dice.number())));
            ReplyEvent::Logged(Logged::Tokens(run))
        }
    };
    Event { agent, reply_id, what }
}

fn engine(dice: &mut Dice) -> EngineInfo {
    EngineInfo {
        version: dice.text(),
        model: dice.maybe(Dice::text),
        fingerprint: dice.roll(),
        architecture: dice.text(),
        vocab: dice.number(),
        device: dice.text(),
        variant: dice.text(),
        context_tokens: dice.number(),
        kv_tokens: dice.number(),
        kv_type: dice.text(),
        context_shift: dice.one_in(2),
        pre_tokenizer: dice.maybe(Dice::text),
        template: dice.maybe(Dice::text),
        has_tokens: dice.one_in(2),
    }
}

/// Records at random, with ids as a reader numbers them.
pub fn entries(dice: &mut Dice, count: usize) -> Vec<Entry> {
    let mut ids = Ids { agents: 0, replies: 0 };
    let (mut frame, mut micros) = (0, 0);
    let mut entry = |dice: &mut Dice| {
        if dice.one_in(2) {
            frame += dice.below(4);
            micros += dice.below(400_000);
        }
        let record = match dice.below(20) {
            0 => Record::Engine(Box::new(engine(dice))),
            1 => Record::Paused(dice.one_in(2)),
            2..9 => Record::Command(Box::new(command(dice, &mut ids))),
            _ => Record::Event(event(dice, &mut ids)),
        };
        Entry { frame, micros, record }
    };
    (0..count).map(|_| entry(dice)).collect()
}
