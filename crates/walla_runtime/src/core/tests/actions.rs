//! Agents that act: calls are constrained, delivered once, in order, and never spoken.

use serde_json::{Value, json};
use walla_doubles::faulty::FaultPlan;
use walla_doubles::synth::Dialect;
use walla_grammar::{ActionError, ActionSet, ActionSpec, CallError};
use walla_types::TokenMask;

use super::fallback::{run_and_lose, with_spare};
use super::*;
use crate::api::{ActionPolicy, Actions, Speaker, Turn};

pub(super) const MARKERS: [&str; 2] = ["<tool_call>", "</tool_call>"];

const TEMPLATE: &str = "{% for m in messages %}\
    <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A tiny model with these special tokens.
pub(super) fn model(special: &[&str]) -> EngineOptions {
    let dialect = Dialect { template: TEMPLATE, special };
    let file = synth::write_dialect(&Model::TINY, Mixture::Q8_0, 7, &dialect, Vec::new());
    let bytes = Vec::leak(file.expect("a vector takes everything"));
    EngineOptions { model: ModelSource::Static(bytes), context_tokens: 1_024, ..options() }
}

/// The model of simulations with actions.
pub(super) fn source() -> Arc<Source> {
    static SOURCE: OnceLock<Arc<Source>> = OnceLock::new();
    let open = || Source::open(&model(&MARKERS)).expect("the file is sound").0;
    Arc::clone(SOURCE.get_or_init(open))
}

/// Sampling that often opens a call of this model.
pub(super) fn opening(sampling: Sampling) -> Sampling {
    static OPEN: OnceLock<TokenId> = OnceLock::new();
    let open = OPEN.get_or_init(|| {
        let tokenizer = &rig(&model(&MARKERS)).core.model_text.tokenizer;
        tokenizer.special_token(MARKERS[0]).expect("the model has it")
    });
    sampling.to_builder().bias(*open, 5.0).build().expect("valid")
}

/// The shortest set of actions.
pub(super) fn wave() -> ActionSet {
    let wave = ActionSpec::new("wave", "", &json!({"type": "object"})).expect("a valid action");
    ActionSet::new([wave]).expect("a valid set")
}

pub(super) fn rig(options: &EngineOptions) -> Rig {
    Rig::new(options, &inline_cpu(), Pacing::FreeRunning)
}

fn set() -> ActionSet {
    let give = json!({"type": "object", "properties": {
        "item": {"enum": ["nails", "horseshoe"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 20}},
        "required": ["item", "count"]});
    let wave = json!({"type": "object"});
    let specs = [("give", "Hands an item over.", give), ("wave", "Waves.", wave)];
    let specs = specs.map(|(name, about, schema)| ActionSpec::new(name, about, &schema));
    ActionSet::new(specs.map(|spec| spec.expect("a valid action"))).expect("a valid set")
}

/// An agent that opens a call now and then.
pub(super) fn actor(rig: &Rig, seed: u64, change: impl FnOnce(&mut Actions)) -> AgentSpec {
    let mut spec = speaker(seed, 24);
    if let Some(open) = rig.core.model_text.tokenizer.special_token(MARKERS[0]) {
        let sampling = spec.sampling.to_builder().bias(open, 5.0);
        spec.sampling = sampling.build().expect("valid");
    }
    let mut actions = Actions::new(set());
    change(&mut actions);
    AgentSpec { actions: Some(actions), ..spec }
}

pub(super) fn chat(text: &str) -> Prompt {
    Prompt::Chat(text.into())
}

/// The arguments are valid: written by hand, independent of the library.
pub(super) fn is_valid(name: &str, arguments: &Value) -> bool {
    let Some(map) = arguments.as_object() else { return false };
    match name {
        "wave" => map.is_empty(),
        "give" => {
            let is_item = map["item"] == "nails" || map["item"] == "horseshoe";
            map.len() == 2 && is_item && (1..=20).contains(&map["count"].as_i64().unwrap_or(0))
        }
        _ => false,
    }
}

fn turns(rig: &Rig, agent: AgentId) -> Vec<Turn> {
    let agent = rig
        .core
        .agents
        .get(rig.core.agents.slot_of(agent).expect("it has a slot"))
        .expect("it lives");
    agent.history.turns().to_vec()
}

fn assert_sound(heard: &Heard) {
    for call in &heard.calls {
        assert!(is_valid(&call.name, &call.arguments.clone().into()), "{call:?}");
    }
    assert!(!heard.text.contains("tool_call") && !heard.text.contains("arguments"), "{heard:?}");
    let ids =
        heard.calls.iter().map(|call| call.id).chain(heard.refused.iter().map(|call| call.id));
    let mut indices: Vec<u32> = ids.map(|id| id.index).collect();
    indices.sort_unstable();
    assert!(indices.iter().copied().eq(0..indices.len() as u32), "{heard:?}");
}

#[test]
fn calls_are_valid_delivered_once_and_never_spoken() {
    let options = model(&MARKERS);
    let mut calls = 0;
    for seed in 0..12 {
        let mut rig = rig(&options);
        let agent = rig.agent(actor(&rig, seed, |_| {}));
        let ask = rig.ask(agent, chat("Nails, please."));
        rig.run();
        rig.assert_all_ended();
        let heard = rig.reply(ask).clone();
        assert_sound(&heard);
        assert!(heard.refused.is_empty(), "draws are constrained: {heard:?}");
        assert!(heard.calls.len() <= 4);
        let is_limit = heard.ends == [Ok(FinishReason::CallLimit)];
        assert_eq!(is_limit, heard.calls.len() == 4, "{heard:?}");
        assert_eq!(heard.usage.call_tokens > 0, !heard.calls.is_empty());
        let Usage { reply_tokens, call_tokens, forced_tokens, .. } = heard.usage;
        let ends = u64::from(heard.ends == [Ok(FinishReason::EndOfTurn)]);
        let sampled = u64::from(reply_tokens + call_tokens - forced_tokens) + ends;
        assert_eq!(rig.core.stats().tokens, sampled, "{heard:?}");
        assert_eq!(forced_tokens > 0, !heard.calls.is_empty());
        let [question, reply, acts @ ..] = &turns(&rig, agent)[..] else { panic!("{heard:?}") };
        assert_eq!((question.speaker, reply.speaker), (Speaker::User, Speaker::Agent));
        assert_eq!(reply.text, heard.text);
        let of_call = |call: &Call| {
            let arguments = Value::from(call.arguments.clone()).to_string();
            let arguments = arguments.replace(':', ": ").replace(',', ", ");
            let text = format!("{{\"name\": \"{}\", \"arguments\": {arguments}}}", call.name);
            Turn { call: Some(call.id), ..Turn::new(Speaker::Action, text) }
        };
        assert_eq!(acts, heard.calls.iter().map(of_call).collect::<Vec<_>>());
        calls += heard.calls.len();
    }
    assert!(calls > 8, "{calls}");
}

/// Masks that arrive late and steps that are launched ahead change no token.
#[test]
fn late_masks_change_neither_speech_nor_calls() {
    let options = model(&MARKERS);
    let replies = |delays: &dyn Fn(u32) -> u32| {
        let mut rig = rig(&options);
        rig.core.constraints.delays = (0..5_000).map(delays).collect();
        let asks: Vec<_> = (0..6)
            .map(|seed| {
                let agent = rig.agent(actor(&rig, seed, |_| {}));
                rig.ask(agent, chat("Nails, please."))
            })
            .collect();
        for _ in 0..40_000 {
            rig.advance();
            if asks.iter().all(|ask| !rig.reply(*ask).ends.is_empty()) {
                break;
            }
        }
        rig.assert_all_ended();
        asks.into_iter()
            .map(|ask| {
                let heard = rig.reply(ask);
                (heard.text.clone(), heard.calls.clone(), heard.usage.call_tokens)
            })
            .collect::<Vec<_>>()
    };
    let prompt = replies(&|_| 0);
    assert!(prompt.iter().filter(|(_, calls, _)| !calls.is_empty()).count() > 2, "{prompt:?}");
    assert_eq!(replies(&|_| 3), prompt);
    assert_eq!(replies(&|at| at * 7 % 11), prompt);
}

#[test]
fn a_required_reply_begins_with_a_call() {
    for special in [&MARKERS[..], &[]] {
        let options = model(special);
        let (mut kept, mut spoken) = (0, 0);
        for seed in 0..6 {
            let mut rig = rig(&options);
            let agent = rig.agent(actor(&rig, seed, |actions| {
                (actions.policy, actions.max_calls) = (ActionPolicy::Required, 1);
            }));
            let ask = rig.ask(agent, chat("Nails, please."));
            rig.run();
            let heard = rig.reply(ask);
            assert_sound(heard);
            assert_eq!((heard.calls.len(), &*heard.text), (1, ""), "{heard:?}");
            assert_eq!(heard.ends, [Ok(FinishReason::CallLimit)]);
            // A reply to the result is free to speak.
            let result = Turn::new(Speaker::ActionResult, "Done.");
            rig.command(Command::AppendTurns { agent, turns: vec![result] });
            let next = rig.ask(agent, Prompt::Continue);
            rig.run();
            rig.assert_all_ended();
            let speakers: Vec<_> = turns(&rig, agent).iter().map(|turn| turn.speaker).collect();
            spoken += usize::from(!rig.reply(next).text.is_empty());
            // The context is small: the first turns may have been dropped, all together.
            let begin = [Speaker::User, Speaker::Agent, Speaker::Action, Speaker::ActionResult];
            let rest = speakers.strip_prefix(&begin).unwrap_or(&speakers);
            kept += usize::from(rest.len() < speakers.len());
            assert!(rest == [Speaker::Agent] || rest == [Speaker::Agent, Speaker::Action]);
        }
        assert!(kept > 0 && spoken > 0);
    }
}

/// The policy of an ask has priority over the policy of its agent.
#[test]
fn the_policy_of_an_ask_replaces_that_of_its_agent() {
    let options = model(&MARKERS);
    for seed in 0..8 {
        let mut rig = rig(&options);
        let open = rig.core.model_text.tokenizer.special_token(MARKERS[0]).expect("it has it");
        let spec = actor(&rig, seed, |_| {});
        // A model that wants to call: only the policy prevents it.
        let sampling = spec.sampling.to_builder().bias(open, 5.0).build().expect("valid");
        let agent = rig.agent(AgentSpec { sampling, ..spec });
        let with = |policy| AskOptions { actions: Some(policy), ..AskOptions::default() };
        let off = rig.ask_with(agent, chat("Nails, please."), with(ActionPolicy::Off));
        let required = rig.ask_with(agent, chat("Nails!"), with(ActionPolicy::Required));
        rig.run();
        rig.assert_all_ended();
        assert!(rig.reply(off).calls.is_empty());
        assert!(rig.reply(off).refused.is_empty(), "no call opens");
        assert_sound(rig.reply(off));
        assert!(!rig.reply(required).calls.is_empty());
    }
}

/// Tokens that open a call are removed from the tokens that the agent may sample.
#[test]
fn a_policy_without_calls_keeps_the_allowed_tokens() {
    let mut rig = rig(&model(&MARKERS));
    let open = rig.core.model_text.tokenizer.special_token(MARKERS[0]).expect("the model has it");
    let letters = (b'a'..=b'z').map(|byte| TokenId(byte.into()));
    let vocab = rig.core.model_text.tokenizer.vocab_size() as u32;
    let allowed = TokenMask::allow(vocab, letters.chain([open])).expect("tokens of the model");
    let spec = actor(&rig, 5, |actions| actions.policy = ActionPolicy::Off);
    let sampling = spec.sampling.to_builder().allowed_tokens(Arc::new(allowed));
    let sampling = sampling.bias(open, 100.0).build().expect("valid");
    let agent = rig.agent(AgentSpec { sampling, ..spec });
    let reply = rig.ask(agent, chat("Nails, please."));
    rig.run();
    rig.assert_all_ended();
    let heard = rig.reply(reply);
    assert!(heard.calls.is_empty() && heard.refused.is_empty());
    assert!(!heard.text.is_empty());
    // GPT-2's letters of the bytes: tokens of the synthetic vocabulary are bytes in order.
    assert!(heard.text.bytes().all(|byte| byte.is_ascii_lowercase()), "{}", heard.text);
}

/// A conversation without questions ends at some time: the model and the game could call and
/// answer for ever.
#[test]
fn consecutive_rounds_of_calls_are_bounded() {
    let mut rig = rig(&EngineOptions { context_tokens: 4_096, ..model(&MARKERS) });
    let spec = actor(&rig, 3, |actions| actions.max_calls = 1);
    let open = rig.core.model_text.tokenizer.special_token(MARKERS[0]).expect("the model has it");
    let sampling = spec.sampling.to_builder().bias(open, 100.0).build().expect("valid");
    let agent = rig.agent(AgentSpec { sampling, ..spec });
    let first = rig.ask(agent, chat("Nails, please."));
    rig.run();
    assert!(!rig.reply(first).calls.is_empty());
    let mut rounds = 0;
    loop {
        let result = Turn::new(Speaker::ActionResult, "Done.");
        rig.command(Command::AppendTurns { agent, turns: vec![result] });
        let next = rig.ask(agent, Prompt::Continue);
        rig.run();
        if rig.reply(next).calls.is_empty() {
            break;
        }
        rounds += 1;
    }
    assert_eq!(rounds, 8);
    let next = rig.ask(agent, chat("Nails, please."));
    rig.run();
    assert!(!rig.reply(next).calls.is_empty(), "a question permits calls again");
}

/// A reply that is cancelled within a call delivers no half call.
#[test]
fn a_cancelled_reply_delivers_no_half_call() {
    let options = model(&MARKERS);
    let mut unfinished = 0;
    for rounds in 1..60 {
        let mut rig = rig(&options);
        let agent = rig.agent(actor(&rig, 4, |actions| actions.policy = ActionPolicy::Required));
        let reply_id = rig.ask(agent, chat("Nails, please."));
        for _ in 0..rounds {
            rig.advance();
        }
        if rounds % 2 == 0 {
            rig.command(Command::Cancel { agent, reply_id });
        } else {
            rig.command(Command::RemoveAgent { agent });
        }
        rig.run();
        rig.assert_all_ended();
        let heard = rig.reply(reply_id);
        assert_sound(heard);
        for refused in &heard.refused {
            assert_eq!(refused.call.error, CallError::Unfinished);
            unfinished += 1;
        }
    }
    assert!(unfinished > 3, "{unfinished}");
}

/// Replies of four agents on a device that is lost after some rounds.
fn scenario(options: &EngineOptions, lose_after: Option<usize>) -> Vec<Heard> {
    let (registry, handle) = with_spare(FaultPlan::new(1));
    let mut rig = Rig::new(options, &registry, Pacing::FreeRunning);
    let mut asks = Vec::new();
    for seed in 0..4 {
        let agent = rig.agent(actor(&rig, seed, |_| {}));
        asks.push(rig.ask(agent, chat("Nails, please.")));
    }
    run_and_lose(&mut rig, options, (&registry, &handle), lose_after);
    asks.iter().map(|&ask| rig.reply(ask).clone()).collect()
}

#[test]
fn a_lost_device_changes_neither_speech_nor_calls() {
    let options = EngineOptions { context_tokens: 512, ..model(&MARKERS) };
    let undisturbed = scenario(&options, None);
    assert!(undisturbed.iter().any(|heard| !heard.calls.is_empty()), "{undisturbed:?}");
    for round in [1, 3, 6, 10, 15, 20, 26] {
        for (heard, expected) in scenario(&options, Some(round)).iter().zip(&undisturbed) {
            assert_eq!((&heard.text, &heard.calls), (&expected.text, &expected.calls), "{round}");
            assert_eq!(heard.ends, expected.ends);
        }
    }
}

/// Actions are in the prompt, and a call in the conversation is there again.
#[test]
fn the_prompt_names_the_actions() {
    let mut rig = rig(&model(&[]));
    let agents = [rig.agent(actor(&rig, 1, |_| {})), rig.agent(speaker(1, 24))];
    let asks = agents.map(|agent| rig.ask(agent, chat("Nails, please.")));
    rig.run();
    let [with, without] = asks.map(|ask| rig.reply(ask).usage.prompt_tokens as usize);
    let prompt = &sampled_tokens(&rig, agents[0], 0)[..with];
    let text: Vec<u8> = prompt.iter().filter_map(|token| u8::try_from(token.0).ok()).collect();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("give(") && text.contains("\"horseshoe\""), "{text}");
    assert!(with > without + 50, "{with} and {without}");
}

/// The set with these choices of the item, and each of them of iron: a call without any choice
/// would be made without evaluating its prompt.
fn of_items(is_listed: bool, items: &[&str]) -> ActionSet {
    let items: Vec<_> =
        items.iter().flat_map(|item| [(*item).to_owned(), format!("{item} of iron")]).collect();
    let text = json!({"type": "object", "properties": {"item": {"type": "string"}},
        "required": ["item"]});
    let give = ActionSpec::new("give", "Hands an item over.", &text).expect("a valid action");
    let give = match is_listed {
        true => give.with_choices("item", items),
        false => give.with_unlisted_choices("item", items),
    };
    ActionSet::new([give.expect("it is a text")]).expect("a valid set")
}

/// An agent whose replies begin with a call of `give`, and its specification with other items.
fn giver(rig: &mut Rig, is_listed: bool) -> (AgentId, impl Fn(&[&str]) -> Box<AgentSpec> + use<>) {
    let spec = AgentSpec { persona: "You are the smith of Emberfall. ".repeat(6), ..speaker(3, 8) };
    let with = move |items: &[&str]| {
        let actions = Actions::new(of_items(is_listed, items));
        let actions = Actions { policy: ActionPolicy::Required, max_calls: 1, ..actions };
        Box::new(AgentSpec { actions: Some(actions), ..spec.clone() })
    };
    (rig.agent(*with(&["nails"])), with)
}

fn is_outdated(rig: &Rig, agent: AgentId) -> bool {
    let slot = rig.core.agents.slot_of(agent).expect("it has a slot");
    rig.core.agents.get(slot).expect("it lives").background.is_pending()
}

/// Prompt tokens of a reply that were evaluated after its ask.
fn evaluated(rig: &Rig, ask: ReplyId) -> u64 {
    let usage = rig.reply(ask).usage;
    u64::from(usage.prompt_tokens - usage.cached_tokens)
}

fn item(rig: &Rig, ask: ReplyId) -> Option<String> {
    let [call] = &rig.reply(ask).calls[..] else { return None };
    call.arguments["item"].as_str().map(|item| item.replace(" of iron", ""))
}

/// Tokens of a question, a reply and the markers around them.
const OWN_TOKENS: u64 = 100;

/// Neither an ask nor the background evaluates a prompt again, or encodes it. Prompts with lists of
/// choices are evaluated again.
#[test]
fn other_unlisted_choices_evaluate_no_prompt() {
    for (is_listed, background_prefill) in
        [(false, false), (false, true), (true, false), (true, true)]
    {
        let options = EngineOptions { background_prefill, ..model(&MARKERS) };
        let mut rig = rig(&options);
        let (agent, with) = giver(&mut rig, is_listed);
        rig.run();
        let first = rig.ask(agent, chat("Nails?"));
        rig.run();
        assert_eq!(item(&rig, first).as_deref(), Some("nails"));
        for choice in ["sword", "anvil", "horseshoe"] {
            let before = rig.core.stats().background_tokens;
            let was_outdated = is_outdated(&rig, agent);
            rig.command(Command::ChangeAgent { agent, spec: with(&[choice]) });
            assert_eq!(is_outdated(&rig, agent), is_listed || was_outdated);
            rig.now_micros += 2_000_000;
            rig.run();
            let in_background = rig.core.stats().background_tokens - before;
            let ask = rig.ask(agent, chat("Another, please."));
            rig.run();
            assert_eq!(item(&rig, ask).as_deref(), Some(choice), "{:?}", rig.reply(ask));
            let tokens = in_background + evaluated(&rig, ask);
            assert_eq!(tokens > OWN_TOKENS, is_listed, "{choice}: {tokens}");
            assert!(is_listed || in_background == 0);
        }
        rig.assert_all_ended();
    }
}

/// A reply in progress keeps the choices with which it began. The next one has the others, and
/// evaluates no more than its question.
#[test]
fn unlisted_choices_change_behind_the_reply_in_progress() {
    let mut changed = 0;
    for rounds in 1..40 {
        let mut rig = rig(&model(&MARKERS));
        let (agent, with) = giver(&mut rig, false);
        rig.run();
        let first = rig.ask(agent, chat("Nails?"));
        for _ in 0..rounds {
            rig.advance();
        }
        let has_begun = rig.reply(first).started > 0;
        changed += u32::from(has_begun && rig.reply(first).ends.is_empty());
        rig.command(Command::ChangeAgent { agent, spec: with(&["sword"]) });
        let next = rig.ask(agent, chat("Another, please."));
        rig.run();
        rig.assert_all_ended();
        let choice = if has_begun { "nails" } else { "sword" };
        assert_eq!(item(&rig, first).as_deref(), Some(choice), "round {rounds}");
        assert_eq!(item(&rig, next).as_deref(), Some("sword"), "round {rounds}");
        assert!(evaluated(&rig, next) < OWN_TOKENS, "{:?}", rig.reply(next).usage);
    }
    assert!(changed > 3, "{changed}");
}

/// Without choices the agent calls nothing, and its prompt stays as it is.
#[test]
fn an_action_without_unlisted_choices_stays_in_the_prompt() {
    let mut rig = rig(&EngineOptions { background_prefill: true, ..model(&MARKERS) });
    let (agent, with) = giver(&mut rig, false);
    rig.run();
    let change = |rig: &mut Rig, items: &[&str]| {
        let mut spec = with(items);
        let actions = spec.actions.as_mut().expect("it has actions");
        actions.policy = ActionPolicy::Auto;
        spec.sampling = opening(spec.sampling);
        rig.command(Command::ChangeAgent { agent, spec });
        let before = rig.core.stats().background_tokens;
        rig.run();
        let ask = rig.ask(agent, chat("Nails?"));
        rig.run();
        let in_background = rig.core.stats().background_tokens - before;
        assert!(in_background + evaluated(rig, ask) < OWN_TOKENS, "{:?}", rig.reply(ask).usage);
        rig.reply(ask).clone()
    };
    let sold_out = change(&mut rig, &[]);
    assert!(sold_out.calls.is_empty() && sold_out.refused.is_empty(), "{sold_out:?}");
    let called: usize = (0..4).map(|_| change(&mut rig, &["nails"]).calls.len()).sum();
    assert!(called > 0);
}

/// A reply with a constraint makes no calls.
#[test]
fn a_constraint_excludes_calls() {
    let mut rig = rig(&model(&MARKERS));
    let spec = actor(&rig, 1, |actions| actions.policy = ActionPolicy::Required);
    let agent = rig.agent(spec);
    let choice = AskOptions::constraint(walla_grammar::Constraint::choice(["yes", "no"]));
    let ask = rig.ask_with(agent, chat("Nails?"), choice);
    rig.run();
    let heard = rig.reply(ask);
    assert!(["yes", "no"].contains(&heard.text.as_str()) && heard.calls.is_empty(), "{heard:?}");
}

/// The agent's policy and its constraint contradict each other, as the two settings of an ask do.
/// The setting of an ask replaces that of its agent.
#[test]
fn a_required_call_under_the_agents_constraint_is_an_error() {
    let mut rig = rig(&model(&MARKERS));
    let choice = || walla_grammar::Constraint::choice(["yes", "no"]);
    let required = AskOptions { actions: Some(ActionPolicy::Required), ..AskOptions::default() };
    let both = AskOptions { constraint: Some(choice()), ..required.clone() };
    let cases = [
        (true, true, AskOptions::default(), true),
        (true, false, AskOptions::constraint(choice()), false),
        (true, true, AskOptions::constraint(choice()), false),
        (false, true, required, true),
        (false, false, both, true),
        (false, true, AskOptions::default(), false),
    ];
    for (at, (is_required, is_constrained, options, fails)) in cases.into_iter().enumerate() {
        let mut spec = actor(&rig, 1, |actions| {
            actions.policy =
                if is_required { ActionPolicy::Required } else { ActionPolicy::default() };
        });
        spec.constraint = is_constrained.then(choice);
        let agent = rig.agent(spec);
        let ask = rig.ask_with(agent, chat("Nails?"), options);
        rig.run();
        let heard = rig.reply(ask);
        if fails {
            let error = ReplyError::Actions(Arc::new(ActionError::Constrained));
            assert_eq!(heard.ends, [Err(error)], "{at}");
        } else {
            assert!(["yes", "no"].contains(&heard.text.as_str()), "{at}: {heard:?}");
        }
        rig.command(Command::RemoveAgent { agent });
    }
}

/// Each format: no reply makes more calls than the limit, in however many blocks, and none of its
/// calls is refused.
#[test]
fn the_limit_of_calls_holds_across_blocks() {
    for (open, others, mentions) in [
        ("<tool_call>", &["</tool_call>"][..], ""),
        ("<|python_tag|>", &[], "<|python_tag|> parameters"),
        ("[TOOL_CALLS]", &[], "[TOOL_CALLS]"),
    ] {
        let special: Vec<_> = std::iter::once(open).chain(others.iter().copied()).collect();
        let template = format!("{{# {mentions} #}}{TEMPLATE}");
        let dialect = Dialect { template: &template, special: &special };
        let file = synth::write_dialect(&Model::TINY, Mixture::Q8_0, 7, &dialect, Vec::new());
        let bytes = Vec::leak(file.expect("a vector takes everything"));
        let mut options = model(&[]);
        options.model = ModelSource::Static(bytes);
        let mut rig = rig(&options);
        let opening = rig.core.model_text.tokenizer.special_token(open).expect("it is one");
        let mut calls = [0; 4];
        for seed in 0..12 {
            for max_calls in 1..4 {
                let mut spec = actor(&rig, seed, |actions| actions.max_calls = max_calls);
                let policies = [ActionPolicy::Auto, ActionPolicy::Required];
                let of_agent = spec.actions.iter_mut();
                of_agent.for_each(|actions| actions.policy = policies[seed as usize % 2]);
                let sampling = spec.sampling.to_builder().bias(opening, 30.0);
                spec.sampling = sampling.build().expect("valid");
                let agent = rig.agent(spec);
                let ask = rig.ask(agent, chat("Nails?"));
                rig.run();
                let heard = rig.reply(ask);
                assert!(heard.calls.len() <= max_calls as usize, "{open} {max_calls}: {heard:?}");
                assert!(heard.refused.is_empty(), "{open} {max_calls}: {heard:?}");
                calls[max_calls as usize] += heard.calls.len();
                rig.command(Command::RemoveAgent { agent });
            }
        }
        assert!(calls[1] > 0 && calls[3] >= calls[1], "{open}: {calls:?}");
        rig.assert_all_ended();
    }
}

/// A model repeats earlier calls. Without possible actions it must not: a call would be spoken.
#[test]
fn an_agent_without_possible_actions_speaks_no_call() {
    for special in [&MARKERS[..], &[]] {
        let options = model(special);
        let give = set().get("give").expect("it is possible").with_choices("item", [""; 0]);
        let sold_out = ActionSet::new([give.expect("a list of texts")]).expect("a valid set");
        let with = |set| Some(Actions::new(set));
        for actions in [None, with(ActionSet::default()), with(sold_out)] {
            let mut rig = rig(&options);
            let mut spec = actor(&rig, 3, |_| {});
            if let Some(open) = rig.core.model_text.tokenizer.special_token(MARKERS[0]) {
                let sampling = spec.sampling.to_builder().bias(open, 100.0);
                spec.sampling = sampling.build().expect("valid");
            }
            let turn = |speaker, text: &str| Turn::new(speaker, text);
            let call = r#"{"name": "give", "arguments": {"item": "nails", "count": 3}}"#;
            spec.turns = vec![
                turn(Speaker::User, "Nails!"),
                turn(Speaker::Action, call),
                turn(Speaker::ActionResult, "Sold."),
            ];
            let agent = rig.agent(AgentSpec { actions, ..spec });
            let ask = rig.ask(agent, chat("Nails, please."));
            rig.run();
            rig.assert_all_ended();
            let heard = rig.reply(ask);
            assert_sound(heard);
            assert!(heard.calls.is_empty(), "{heard:?}");
            assert!(special.is_empty() || heard.refused.is_empty(), "no call opens: {heard:?}");
        }
    }
}

/// Only replies to results are counted: an agent that is driven by observations acts as long as it
/// lives.
#[test]
fn observations_permit_calls_for_ever() {
    let mut rig = rig(&EngineOptions { context_tokens: 4_096, ..model(&MARKERS) });
    let spec = actor(&rig, 3, |actions| {
        (actions.policy, actions.max_calls) = (ActionPolicy::Required, 1);
    });
    let agent = rig.agent(spec);
    for round in 0..12 {
        let seen = Turn::new(Speaker::Observation, "A guest enters.");
        rig.command(Command::AppendTurns { agent, turns: vec![seen] });
        let next = rig.ask(agent, Prompt::Continue);
        rig.run();
        assert!(!rig.reply(next).calls.is_empty(), "round {round}");
    }
    // An ask may require a call of a reply to a result, too.
    let required = AskOptions { actions: Some(ActionPolicy::Required), ..AskOptions::default() };
    let result = Turn::new(Speaker::ActionResult, "Done.");
    rig.command(Command::AppendTurns { agent, turns: vec![result] });
    let next = rig.ask_with(agent, Prompt::Continue, required);
    rig.run();
    assert!(!rig.reply(next).calls.is_empty());
}

/// The limit of all tokens ends a reply within a call too. Until then nothing changes.
#[test]
fn a_limit_of_all_tokens_includes_calls() {
    let reply = |max_tokens| {
        let mut rig = rig(&model(&MARKERS));
        let agent = rig.agent(actor(&rig, 3, |actions| actions.policy = ActionPolicy::Required));
        let options = AskOptions { max_tokens, ..AskOptions::default() };
        let ask = rig.ask_with(agent, chat("Nails, please."), options);
        rig.run();
        rig.assert_all_ended();
        rig.reply(ask).clone()
    };
    let count = |heard: &Heard| heard.usage.reply_tokens + heard.usage.call_tokens;
    let whole = reply(None);
    let tokens = count(&whole);
    assert!(!whole.calls.is_empty() && tokens > 24, "{whole:?}");
    for max_tokens in [0, 1, 7, 20, tokens - 1] {
        let cut = reply(Some(max_tokens));
        assert_eq!((count(&cut), &cut.ends[..]), (max_tokens, &[Ok(FinishReason::Length)][..]));
        assert!(whole.text.starts_with(&cut.text) && whole.calls.starts_with(&cut.calls));
    }
    let same = reply(Some(tokens + 1));
    assert_eq!((&same.text, &same.calls, &same.ends), (&whole.text, &whole.calls, &whole.ends));
}

#[test]
fn a_required_call_that_is_not_possible_is_an_error() {
    let required = || AskOptions { actions: Some(ActionPolicy::Required), ..Default::default() };
    let yes = walla_grammar::Constraint::choice(["yes"]);
    let constrained = AskOptions { constraint: Some(yes.clone()), ..required() };
    let mut rig = rig(&model(&MARKERS));
    let plain = speaker(1, 8);
    let with = |policy, set| Actions { policy, ..Actions::new(set) };
    let none = with(ActionPolicy::Required, ActionSet::default());
    let some = with(ActionPolicy::Auto, set());
    let cases = [
        (AgentSpec { actions: None, ..plain.clone() }, required(), Some(ActionError::NoAction)),
        (
            AgentSpec { actions: Some(none.clone()), ..plain.clone() },
            AskOptions::default(),
            Some(ActionError::NoAction),
        ),
        (
            AgentSpec { actions: Some(some.clone()), ..plain.clone() },
            constrained,
            Some(ActionError::Constrained),
        ),
        (
            AgentSpec { actions: Some(some), constraint: Some(yes), ..plain.clone() },
            required(),
            Some(ActionError::Constrained),
        ),
        // The ask replaces the policy.
        (
            AgentSpec { actions: Some(none), ..plain },
            AskOptions { actions: Some(ActionPolicy::Auto), ..AskOptions::default() },
            None,
        ),
    ];
    for (spec, options, expected) in cases {
        let agent = rig.agent(spec);
        let ask = rig.ask_with(agent, chat("Nails?"), options);
        rig.run();
        let found = match &rig.reply(ask).ends[..] {
            [Err(ReplyError::Actions(error))] => Some((**error).clone()),
            [Ok(_)] => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(found, expected);
    }
}

/// An agent that must call, and whose last action became impossible, speaks about its result.
#[test]
fn a_result_is_answered_without_possible_actions() {
    let mut rig = rig(&model(&MARKERS));
    let turn = |speaker, text: &str| Turn::new(speaker, text);
    let turns = vec![
        turn(Speaker::User, "Nails!"),
        turn(Speaker::Action, r#"{"name": "wave", "arguments": {}}"#),
        turn(Speaker::ActionResult, "Sold."),
    ];
    let none = Actions { policy: ActionPolicy::Required, ..Actions::new(ActionSet::default()) };
    let agent = rig.agent(AgentSpec { actions: Some(none), turns, ..speaker(1, 8) });
    let ask = rig.ask(agent, Prompt::Continue);
    rig.run();
    let heard = rig.reply(ask);
    assert!(matches!(heard.ends[..], [Ok(_)]) && heard.calls.is_empty(), "{heard:?}");
}

#[test]
fn a_maximum_of_no_calls_permits_none() {
    let mut rig = rig(&model(&MARKERS));
    let spec = actor(&rig, 3, |actions| actions.max_calls = 0);
    let open = rig.core.model_text.tokenizer.special_token(MARKERS[0]).expect("the model has it");
    let sampling = spec.sampling.to_builder().bias(open, 100.0).build().expect("valid");
    let agent = rig.agent(AgentSpec { sampling, ..spec });
    let ask = rig.ask(agent, chat("Nails, please."));
    rig.run();
    let heard = rig.reply(ask);
    assert!(heard.calls.is_empty() && heard.refused.is_empty(), "{heard:?}");
}
