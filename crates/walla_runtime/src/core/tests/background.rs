//! Background prefill: the tokens that are evaluated before an ask, and unchanged replies.

use std::time::Duration;

use walla_plan::{
    CostModel, Detail, Governor, GovernorOptions, LinearCost, StepCost, StepWork, defaults,
};

use super::*;
use crate::api::{Speaker, Turn};

fn prepared() -> EngineOptions {
    EngineOptions { background_prefill: true, context_tokens: 512, ..options() }
}

fn free(options: &EngineOptions) -> Rig {
    Rig::new(options, &inline_cpu(), Pacing::FreeRunning)
}

/// A rig with a budget per frame.
fn framed(options: &EngineOptions, budget_micros: u32) -> Rig {
    Rig::budgeted(options, budget_micros, Pacing::default())
}

fn chat(question: &str) -> Prompt {
    Prompt::Chat(question.into())
}

/// An agent with a unique persona of some 150 tokens.
fn smith(seed: u64, max_reply_tokens: u32) -> AgentSpec {
    let persona = format!("{seed} is the smith of this town. ").repeat(5);
    AgentSpec { persona, ..speaker(seed, max_reply_tokens) }
}

/// Prompt tokens that were evaluated after the ask.
fn evaluated(rig: &Rig, ask: ReplyId) -> u32 {
    let usage = rig.reply(ask).usage;
    usage.prompt_tokens - usage.cached_tokens
}

/// Tokens of a question with the markers around it, and the tokens that are too few for a step.
fn own_tokens(question: &str) -> u32 {
    question.len() as u32 + 16 + 24
}

#[test]
fn only_the_question_is_evaluated_at_the_first_ask() {
    for (background_prefill, expected) in [(true, 0..own_tokens("Hi")), (false, 100..300)] {
        let mut rig = free(&EngineOptions { background_prefill, ..prepared() });
        let agent = rig.agent(smith(1, 4));
        rig.run();
        let ask = rig.ask(agent, chat("Hi"));
        rig.run();
        assert!(expected.contains(&evaluated(&rig, ask)), "{:?}", rig.reply(ask).usage);
        let (stats, usage) = (rig.core.stats(), rig.reply(ask).usage);
        let before = if background_prefill { usage.cached_tokens } else { 0 };
        assert_eq!(stats.background_tokens, u64::from(before));
    }
}

/// A talk that is longer than the context. Returns all texts, and the most tokens that an ask
/// evaluated.
fn long_talk(options: &EngineOptions, asks: usize) -> (Vec<String>, u32, u32) {
    let mut rig = free(options);
    let agents = [1, 2, 3].map(|seed| rig.agent(smith(seed, 20)));
    rig.run();
    let (mut texts, mut most, mut longest) = (Vec::new(), 0, 0);
    for n in 0..asks {
        let question = format!("What happened on day {n}?");
        let asks = agents.map(|agent| rig.ask(agent, chat(&question)));
        rig.run();
        for ask in asks {
            let heard = rig.reply(ask);
            assert!(matches!(heard.ends[..], [Ok(_)]), "{heard:?}");
            texts.push(heard.text.clone());
            most = most.max(evaluated(&rig, ask));
            longest = longest.max(heard.usage.prompt_tokens);
        }
    }
    rig.assert_all_ended();
    (texts, most, longest)
}

#[test]
fn a_full_context_is_evaluated_before_the_next_ask() {
    let question = "What happened on day 39?";
    let (texts, most, longest) = long_talk(&prepared(), 40);
    // Turns were dropped, and no ask evaluated more than its question.
    assert!(longest > 400, "{longest}");
    assert!(most < own_tokens(question), "{most}");
    let without = EngineOptions { background_prefill: false, ..prepared() };
    let (same, most, _) = long_talk(&without, 40);
    assert!(most > 150, "{most}");
    assert_eq!(texts, same, "replies do not depend on it");
}

/// The amount that is dropped at once limits how much is evaluated again.
#[test]
fn a_long_talk_evaluates_a_few_tokens_for_each_of_its_tokens() {
    let mut rig = free(&EngineOptions { context_tokens: 1_024, ..prepared() });
    let agent = rig.agent(speaker(1, 20));
    let mut said = 0;
    for n in 0..200 {
        let question = format!("What happened on day {n}?");
        let ask = rig.ask(agent, chat(&question));
        rig.run();
        said += u64::from(rig.reply(ask).usage.reply_tokens) + question.len() as u64 + 16;
    }
    assert!(said > 6 * 1_024, "{said}");
    let evaluated = rig.core.stats().background_tokens;
    assert!(evaluated < 4 * said, "{evaluated} for {said}");
}

#[test]
fn an_ask_takes_over_what_has_been_evaluated() {
    // A step of the background per frame: 700 µs of 1 ms.
    let mut rig = framed(&prepared(), 1_000);
    let agent = rig.agent(smith(1, 4));
    for _ in 0..4 {
        rig.frame();
    }
    let before = rig.core.stats().background_tokens;
    assert!((40..130).contains(&before), "{before}");
    let ask = rig.ask(agent, chat("Hi"));
    for _ in 0..40 {
        rig.frame();
    }
    let usage = rig.reply(ask).usage;
    assert_eq!((rig.reply(ask).ends.len(), u64::from(usage.cached_tokens)), (1, before));
}

#[test]
fn speakers_get_the_same_tokens_in_the_same_frames() {
    let frames = |background_prefill| {
        let mut rig = framed(&EngineOptions { background_prefill, ..prepared() }, 1_200);
        let speaking = rig.agent(AgentSpec { sampling: Sampling::greedy(), ..speaker(9, 80) });
        let first = rig.ask(speaking, tokens("ab"));
        rig.frame();
        for seed in 0..5 {
            rig.agent(smith(seed, 4));
        }
        let per_frame = (0..90).map(|_| {
            rig.frame();
            let used = rig.core.stats().budget;
            assert!(used.used <= Duration::from_micros(1_200), "{used:?}");
            rig.reply(first).tokens
        });
        let per_frame: Vec<_> = per_frame.collect();
        assert_eq!(rig.core.stats().budget.frames_over, 0);
        (per_frame, rig.core.stats().background_tokens)
    };
    let ((with, background), (without, none)) = (frames(true), frames(false));
    assert_eq!(with, without);
    assert!(background > 5 * 130 && none == 0, "{background} {none}");
}

#[test]
fn a_budget_below_one_row_is_overdrawn_in_quiet_frames_only() {
    let mut rig = framed(&prepared(), 200);
    rig.agent(smith(1, 4));
    for _ in 0..60 {
        rig.frame();
    }
    let quiet = rig.core.stats().background_tokens;
    assert!((10..170).contains(&quiet), "{quiet}");
    let speaking = rig.agent(AgentSpec { sampling: Sampling::greedy(), ..speaker(9, 80) });
    rig.ask(speaking, tokens("ab"));
    rig.frame();
    let before = rig.core.stats().background_tokens;
    for _ in 0..60 {
        rig.frame();
    }
    assert_eq!(rig.core.stats().background_tokens, before);
}

#[test]
fn a_budget_of_zero_prepares_nothing() {
    let mut rig = framed(&prepared(), 0);
    rig.agent(smith(1, 4));
    (0..10).for_each(|_| rig.frame());
    assert_eq!(rig.core.stats().steps, 0);
}

#[test]
fn agents_of_higher_detail_and_priority_are_prepared_first() {
    let mut rig = framed(&prepared(), 1_000);
    let specs =
        [(Detail::Background, 5), (Detail::Full, 0), (Detail::Reduced, 9), (Detail::Full, 1)];
    let agents: Vec<_> = (0..)
        .zip(specs)
        .map(|(seed, (detail, priority))| {
            rig.agent(AgentSpec { detail, priority, ..smith(seed, 4) })
        })
        .collect();
    let mut order = Vec::new();
    for _ in 0..200 {
        rig.frame();
        for &agent in &agents {
            let slot = rig.core.agents.slot_of(agent).expect("it has a slot");
            if rig.core.kv.len(slot) > 100 && !order.contains(&agent) {
                order.push(agent);
            }
        }
    }
    assert_eq!(order, [agents[3], agents[1], agents[2], agents[0]]);
}

#[test]
fn no_agent_loses_its_pages_to_a_prefill_in_the_background() {
    // Pages for the speaker's context and one persona more.
    let options = EngineOptions { kv_tokens: Some(512 + 208), ..prepared() };
    let mut rig = free(&options);
    let known = rig.agent(smith(1, 4));
    let ask = rig.ask(known, chat("Hi"));
    rig.run();
    assert!(rig.reply(ask).ends[0].is_ok());
    let others: Vec<_> = (2..8).map(|seed| rig.agent(smith(seed, 4))).collect();
    rig.run();
    let stats = rig.core.stats();
    assert!(stats.pages_used <= stats.pages && stats.pages_used > 20, "{stats:?}");
    // It was asked, so its cache is there.
    let again = rig.ask(known, chat("And now?"));
    rig.run();
    assert!(evaluated(&rig, again) < own_tokens("And now?"), "{:?}", rig.reply(again).usage);
    // All the others can still be asked. They take the pages of agents that never were first.
    for other in others {
        let ask = rig.ask(other, chat("Hi"));
        rig.run();
        assert!(rig.reply(ask).ends[0].is_ok(), "{:?}", rig.reply(ask));
    }
}

#[test]
fn an_agent_that_lost_its_pages_is_not_prepared_again_until_it_changes() {
    let mut rig = free(&prepared());
    let agent = rig.agent(smith(1, 4));
    rig.run();
    let first = rig.core.stats().background_tokens;
    rig.core.limit_kv(16);
    rig.core.limit_kv(u32::MAX);
    rig.run();
    assert_eq!(rig.core.stats().background_tokens, first);
    rig.now_micros += 2_000_000;
    let turns = vec![Turn::new(Speaker::Observation, "It rains.")];
    rig.command(Command::AppendTurns { agent, turns });
    rig.run();
    assert!(rig.core.stats().background_tokens >= 2 * first);
}

#[test]
fn changes_are_evaluated_once_per_second_at_most() {
    let mut rig = framed(&prepared(), 4_000);
    let agent = rig.agent(smith(1, 4));
    for n in 0..300 {
        let text = format!("Wagon {n} arrives from the north.");
        let turns = vec![Turn::new(Speaker::Observation, text)];
        rig.command(Command::AppendTurns { agent, turns });
        rig.frame();
    }
    // 300 frames are five seconds, and 25 kB of text. A context has 512 tokens.
    let evaluated = rig.core.stats().background_tokens;
    assert!((300..6 * 512).contains(&evaluated), "{evaluated}");
    let ask = rig.ask(agent, chat("How many?"));
    (0..60).for_each(|_| rig.frame());
    assert!(rig.reply(ask).ends[0].is_ok());
}

#[test]
fn an_edit_in_the_middle_keeps_the_tokens_before_it() {
    let mut rig = free(&prepared());
    let turn = |speaker, text: &str| Turn::new(speaker, text);
    let history = |middle: &str| {
        vec![
            turn(Speaker::User, "Where is the mill?"),
            turn(Speaker::Agent, "Behind the bridge, on the left side of the road."),
            turn(Speaker::User, middle),
            turn(Speaker::Agent, "It is closed."),
        ]
    };
    let agent = rig.agent(AgentSpec { turns: history("And the inn?"), ..smith(1, 4) });
    rig.run();
    let before = rig.core.stats().background_tokens;
    rig.now_micros += 2_000_000;
    rig.command(Command::SetConversation {
        agent,
        turns: history("And the old tower by the sea?"),
    });
    rig.run();
    let edited = rig.core.stats().background_tokens - before;
    assert!((20..120).contains(&edited), "{edited} of {before}");
    let ask = rig.ask(agent, chat("Why?"));
    rig.run();
    assert!(evaluated(&rig, ask) < own_tokens("Why?"), "{:?}", rig.reply(ask).usage);
}

/// A host that renders prompts itself finds its own cache.
#[test]
fn the_cache_of_a_prompt_without_template_is_kept() {
    for prompt in [tokens(&"x".repeat(200)), Prompt::Raw("Once upon a time. ".repeat(10))] {
        let mut rig = free(&prepared());
        let agent = rig.agent(smith(1, 4));
        let asks = [prompt.clone(), prompt].map(|prompt| {
            let ask = rig.ask(agent, prompt);
            rig.run();
            ask
        });
        assert_eq!(evaluated(&rig, asks[1]), 1);
    }
}

#[test]
fn failed_steps_of_the_background_end_it_and_asks_work() {
    use walla_doubles::faulty::{Call, Fault, FaultPlan, FaultyBackend};
    for nth in 0..6 {
        let cpu = CpuBackend::new(CpuOptions { inline: true, ..CpuOptions::default() });
        let plan = FaultPlan::new(1).fail_call(Call::Launch, nth, Fault::Failed);
        let registry = Registry::new().with(FaultyBackend::new(cpu, plan));
        let mut rig = Rig::new(&prepared(), &registry, Pacing::FreeRunning);
        let agents = [1, 2].map(|seed| rig.agent(smith(seed, 4)));
        rig.run();
        for agent in agents {
            let ask = rig.ask(agent, chat("Hi"));
            rig.run();
            assert!(matches!(rig.reply(ask).ends[..], [Ok(_)]), "{nth}: {:?}", rig.reply(ask));
        }
    }
}

#[test]
fn without_a_budget_a_step_is_short_and_alone() {
    let mut rig = free(&EngineOptions { max_prefill_tokens: Some(32), ..prepared() });
    // 10 ms per row: an ask waits for one row at most, not for a chunk.
    const SLOW: LinearCost = LinearCost { step_micros: 0.0, row_micros: 10_000.0, ..COST };
    let options = GovernorOptions { budget_micros: None, ..GovernorOptions::default() };
    rig.core.budget.governor = Governor::new(options, StepCost::from_linear(SLOW));
    rig.core.budget.pretend(|work| (SLOW.predict_micros(work) * 1e3) as u64);
    rig.agent(smith(1, 4));
    rig.advance();
    assert_eq!((rig.core.stats().steps, rig.core.stats().background_tokens), (1, 1));
    let short = defaults::BUDGET_MICROS as f32 > COST.predict_micros(StepWork::prefill(32, 0));
    assert!(short, "the device of the other tests runs whole chunks");
}

/// Shifted keys are an approximation, so texts may differ, and only this agent has them.
#[test]
fn with_shifted_keys_a_full_context_is_not_evaluated_again() {
    let evaluated_of = |context_shift: bool, background_prefill: bool| {
        let options = EngineOptions { context_shift, background_prefill, ..prepared() };
        let mut rig = free(&options);
        let agent = rig.agent(smith(1, 20));
        let mut most = 0;
        for n in 0..60 {
            let question = format!("What happened on day {n}?");
            let ask = rig.ask(agent, chat(&question));
            rig.run();
            assert!(matches!(rig.reply(ask).ends[..], [Ok(_)]), "{:?}", rig.reply(ask));
            if n > 0 {
                most = most.max(evaluated(&rig, ask));
            }
        }
        // An agent with the same persona shares its exact tokens only.
        let other = rig.agent(smith(1, 20));
        let ask = rig.ask(other, chat("What happened on day 59?"));
        rig.run();
        let mut alone = free(&prepared());
        let same = alone.agent(smith(1, 20));
        let reference = alone.ask(same, chat("What happened on day 59?"));
        alone.run();
        assert_eq!(rig.reply(ask).text, alone.reply(reference).text);
        (most, rig.core.stats().background_tokens + rig.core.stats().prefill_tokens)
    };
    let (most, all) = evaluated_of(true, true);
    assert!(most < own_tokens("What happened on day 59?"), "{most}");
    let (_, without) = evaluated_of(false, true);
    assert!(3 * all < 2 * without, "{all} {without}");
    // An ask shifts too, if nothing was prepared.
    let (most, _) = evaluated_of(true, false);
    assert!(most < 100, "{most}");
}

/// The reply ends with a draw in flight, so all known tokens are submitted.
#[test]
fn a_prompt_without_template_ends_the_background_prefill_of_its_agent_only() {
    let mut rig = framed(&prepared(), 1_000);
    let stop_tokens = (0..320).map(TokenId).collect();
    let spec = AgentSpec { stop_tokens, voice_rate: Some(8.0), ..smith(1, 40) };
    let agent = rig.agent(spec);
    rig.frame();
    let other = rig.agent(smith(2, 4));
    rig.ask(agent, tokens("abc"));
    (0..300).for_each(|_| rig.frame());
    assert_eq!(rig.core.stats().background_agents, 0);
    assert!(rig.core.kv.len(rig.core.agents.slot_of(other).expect("a slot")) > 100);
    // A cancelled one is not evaluated any more.
    let before = rig.core.stats().background_tokens;
    let reply_id = rig.ask(agent, tokens(&"xyz ".repeat(100)));
    rig.frame();
    rig.command(Command::Cancel { agent, reply_id });
    (0..100).for_each(|_| rig.frame());
    assert_eq!(rig.core.stats().background_tokens, before);
}

#[test]
fn clients_that_grant_no_frames_or_pause_do_not_hold_others_back() {
    const OTHER: ClientKey = ClientKey(1);
    for is_paused in [false, true] {
        let mut rig = Rig::new(&prepared(), &inline_cpu(), Pacing::FreeRunning);
        rig.core.add_client(OTHER, Pacing::default());
        let first = AgentId(rig.name());
        rig.command_of(OTHER, Command::AddAgent { agent: first, spec: Box::new(smith(1, 300)) });
        if is_paused {
            rig.ask_of(OTHER, first, tokens("abc"));
            rig.core.frame(OTHER, rig.now_micros);
            (0..20).for_each(|_| _ = rig.advance());
            rig.core.set_paused(OTHER, true);
        }
        let mine = rig.agent(smith(2, 4));
        (0..200).for_each(|_| _ = rig.advance());
        let prepared = rig.core.kv.len(rig.core.agents.slot_of(mine).expect("a slot"));
        assert!(prepared > 100, "{is_paused}: {prepared}");
    }
}

#[test]
fn a_specification_that_changes_during_a_reply_is_prepared_after_it() {
    let mut rig = free(&prepared());
    let agent = rig.agent(smith(1, 30));
    rig.run();
    rig.ask(agent, chat("Hi"));
    (0..6).for_each(|_| _ = rig.advance());
    rig.command(Command::ChangeAgent { agent, spec: Box::new(smith(2, 4)) });
    rig.run();
    let ask = rig.ask(agent, chat("Hi"));
    rig.run();
    assert!(evaluated(&rig, ask) < own_tokens("Hi"), "{:?}", rig.reply(ask).usage);
}
