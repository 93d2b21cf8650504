//! Models with recurrent layers share prefixes and go back through snapshots, with the same
//! replies.

use super::*;
use crate::api::{ConversationEdit, Speaker, Turn};
use crate::engine_core::Control;

fn free(options: &EngineOptions) -> Rig {
    Rig::new(options, &inline_cpu(), Pacing::FreeRunning)
}

/// More than two pages.
const LORE: &str =
    "the inn stands by the ford and the river sings all night to whoever listens to it";

/// Prompt tokens that were evaluated.
fn evaluated(heard: &Heard) -> u32 {
    heard.usage.prompt_tokens - heard.usage.cached_tokens
}

fn lore_pages() -> u32 {
    LORE.len() as u32 / 16 * 16
}

#[test]
fn twelve_agents_that_are_asked_in_one_frame_evaluate_their_common_prefix_once() {
    let mut rig = free(&recurrent());
    // They differ in the first character behind the lore.
    let prompt = |seed: usize| format!("{LORE}{} is my number", (b'a' + seed as u8) as char);
    let asks: Vec<_> = (0..12)
        .map(|seed| {
            let agent = rig.agent(speaker(seed as u64, 8));
            rig.ask(agent, tokens(&prompt(seed)))
        })
        .collect();
    rig.run();
    rig.assert_all_ended();
    let evaluated: u32 = asks.iter().map(|&ask| evaluated(rig.reply(ask))).sum();
    let rest = prompt(0).len() as u32 - lore_pages();
    assert_eq!(evaluated, lore_pages() + 12 * rest);
    for (seed, &ask) in asks.iter().enumerate() {
        let heard = rig.reply(ask);
        let alone = alone(&recurrent(), speaker(seed as u64, 8), &prompt(seed));
        assert_eq!((&heard.text, &heard.ends), (&alone.text, &alone.ends), "{seed}");
    }
}

#[test]
fn the_third_agent_with_a_prefix_continues_from_the_snapshot_that_the_second_one_took() {
    let mut rig = free(&recurrent());
    let mut cached = Vec::new();
    for seed in 0..4 {
        let agent = rig.agent(speaker(seed, 8));
        let prompt = format!("{LORE}, asks number {seed}");
        let ask = rig.ask(agent, tokens(&prompt));
        rig.run();
        cached.push(rig.reply(ask).usage.cached_tokens);
        let alone = alone(&recurrent(), speaker(seed, 8), &prompt);
        assert_eq!(rig.reply(ask).text, alone.text);
    }
    assert_eq!(cached, [0, 0, lore_pages(), lore_pages()]);
    let stats = rig.core.stats();
    assert!(stats.snapshots == 12 && (3..=12).contains(&stats.snapshots_used), "{stats:?}");
}

#[test]
fn an_agent_begins_as_the_whole_sequence_of_another() {
    let options = EngineOptions { state_snapshots: Some(0), ..recurrent() };
    let mut rig = free(&options);
    let teller = rig.agent(speaker(1, 1));
    let told = rig.ask(teller, tokens(LORE));
    rig.run();
    // The reply's only token is not evaluated.
    let listener = rig.agent(speaker(2, 8));
    let ask = rig.ask(listener, tokens(&format!("{LORE}, says the smith")));
    rig.run();
    assert_eq!(rig.reply(told).usage.reply_tokens, 1);
    assert_eq!(rig.reply(ask).usage.cached_tokens, LORE.len() as u32);
    let alone = alone(&options, speaker(2, 8), &format!("{LORE}, says the smith"));
    assert_eq!(rig.reply(ask).text, alone.text);
}

/// A conversation whose last reply is written differently than the model sampled it, as templates
/// that drop reasoning do.
#[test]
fn a_changed_reply_is_evaluated_from_the_end_of_the_prompt_before_it() {
    let run = |state_snapshots| {
        let mut rig = free(&EngineOptions { state_snapshots, ..recurrent() });
        let agent = rig.agent(AgentSpec { persona: LORE.into(), ..speaker(1, 12) });
        rig.ask(agent, Prompt::Chat("Who are you?".into()));
        rig.run();
        let turn = |speaker, text: &str| Turn::new(speaker, text);
        let turns =
            vec![turn(Speaker::User, "Who are you?"), turn(Speaker::Agent, "I am somebody else.")];
        rig.command(Command::SetConversation { agent, turns });
        let ask = rig.ask(agent, Prompt::Chat("And now?".into()));
        rig.run();
        rig.reply(ask).clone()
    };
    let (with, without) = (run(None), run(Some(0)));
    assert_eq!(with.text, without.text);
    assert_eq!(without.usage.cached_tokens, 0);
    let new = "I am somebody else.".len() as u32 + "And now?".len() as u32 + 60;
    assert!(evaluated(&with) <= new, "{:?}", with.usage);
}

#[test]
fn a_background_prefill_leaves_a_snapshot_in_front_of_the_question() {
    let mut rig = free(&EngineOptions { background_prefill: true, ..recurrent() });
    let agent = rig.agent(AgentSpec { persona: LORE.into(), ..speaker(1, 4) });
    rig.run();
    let prepared = rig.core.stats().background_tokens as u32;
    assert!(prepared >= 40, "the lore in words: {prepared}");
    // Another question each time, and no conversation: the agent goes back.
    for question in ["Who are you?", "What is it?", "Where am I?"] {
        rig.command(Command::SetConversation { agent, turns: Vec::new() });
        let ask = rig.ask(agent, Prompt::Chat(question.into()));
        rig.run();
        let usage = rig.reply(ask).usage;
        assert_eq!(usage.cached_tokens, prepared, "{question}: {usage:?}");
    }
}

/// Conversations of agents that take turns, after other agents have used all places.
#[test]
fn each_agent_keeps_the_snapshots_of_its_last_two_prompts() {
    let mut rig = free(&EngineOptions { state_snapshots: Some(12), ..recurrent() });
    let turn = |speaker, text: &str| Turn::new(speaker, text);
    let talk = |rig: &mut Rig, names: &[char], exchanges: usize| {
        let spec = |name: &char| AgentSpec { persona: format!("{name}: {LORE}"), ..speaker(1, 4) };
        let agents: Vec<_> = names.iter().map(|name| rig.agent(spec(name))).collect();
        let (mut turns, mut asks) = (Vec::new(), Vec::new());
        for exchange in 0..exchanges {
            let question = format!("What is question {exchange}?");
            let each = agents.iter().map(|&agent| {
                let ask = rig.ask(agent, Prompt::Chat(question.clone()));
                rig.run();
                rig.reply(ask).usage
            });
            asks.push(each.collect::<Vec<_>>());
            // Replies are written differently than they were sampled.
            turns.extend([turn(Speaker::User, &question), turn(Speaker::Agent, "I do not know.")]);
            for &agent in &agents {
                rig.command(Command::SetConversation { agent, turns: turns.clone() });
            }
        }
        (agents, asks)
    };
    for names in [['a', 'b', 'c', 'd'], ['e', 'f', 'g', 'h'], ['i', 'j', 'k', 'l']] {
        let (agents, _) = talk(&mut rig, &names, 3);
        agents.into_iter().for_each(|agent| rig.command(Command::RemoveAgent { agent }));
    }
    let (agents, asks) = talk(&mut rig, &['A', 'B', 'C', 'D', 'E', 'F'], 4);
    for usage in asks.iter().skip(1).flatten() {
        assert!(usage.prompt_tokens - usage.cached_tokens < 100, "{usage:?} of {asks:?}");
    }
    // The last question again, and another one in its place.
    for agent in agents {
        let turns = ["What is question 0?", "I do not know."];
        let speakers = [Speaker::User, Speaker::Agent].into_iter().cycle();
        let turns = turns.into_iter().cycle().zip(speakers).take(6);
        let turns = turns
            .enumerate()
            .map(|(at, (text, speaker))| turn(speaker, &text.replace('0', &(at / 2).to_string())));
        rig.command(Command::SetConversation { agent, turns: turns.collect() });
        for question in ["What is question 3?", "What else?"] {
            let ask = rig.ask(agent, Prompt::Chat(question.into()));
            rig.run();
            let heard = rig.reply(ask).clone();
            assert!(evaluated(&heard) < 150, "{question}: {:?}", heard.usage);
            rig.command(Command::EditConversation {
                agent,
                edit: ConversationEdit::Rewind { turns: 2 },
            });
        }
    }
}

/// With background prefill, only the question is evaluated when a reply is repeated.
#[test]
fn a_repeated_reply_continues_from_the_snapshot_in_front_of_its_question() {
    let mut rig = free(&EngineOptions { background_prefill: true, ..recurrent() });
    let agent = rig.agent(AgentSpec { persona: LORE.into(), ..speaker(1, 4) });
    let ask = |rig: &mut Rig, prompt| {
        let ask = rig.ask(agent, prompt);
        rig.run();
        rig.reply(ask).clone()
    };
    for question in ["Who are you?", "What is it?", "Where am I?"] {
        ask(&mut rig, Prompt::Chat(question.into()));
    }
    let question = "Where am I?".len() as u32 + 60;
    for repetition in 0..3 {
        let heard = ask(&mut rig, Prompt::Again);
        assert!(evaluated(&heard) <= question, "{repetition}: {:?}", heard.usage);
    }
}

#[test]
fn snapshots_give_their_pages_to_agents() {
    let kv_tokens = Some(16 * 16);
    let mut rig = free(&EngineOptions { kv_tokens, ..recurrent() });
    for round in 0..6 {
        let asks: Vec<_> = (0..6)
            .map(|seed| {
                let agent = rig.agent(speaker(seed, 24));
                rig.ask(agent, tokens(&format!("{round} {LORE}, says number {seed}")))
            })
            .collect();
        rig.run();
        for (seed, ask) in asks.into_iter().enumerate() {
            let prompt = format!("{round} {LORE}, says number {seed}");
            let alone = alone(&recurrent(), speaker(seed as u64, 24), &prompt);
            assert_eq!(rig.reply(ask).text, alone.text, "{round} {seed}");
        }
    }
    rig.assert_all_ended();
    // A lower limit takes pages from snapshots first.
    rig.core.control(Control::KvTokens(16));
    rig.advance();
    assert!(rig.core.kv.ledger().used_pages() <= 1, "{:?}", rig.core.stats());
}

#[test]
fn the_number_of_snapshots_is_the_option_and_counts_in_the_cache() {
    let bytes = |state_snapshots| {
        let rig = free(&EngineOptions { state_snapshots, ..recurrent() });
        let (stats, card) = (rig.core.stats(), rig.core.card());
        (stats.snapshots, stats.kv_bytes, card.state_bytes_per_agent)
    };
    let (none, without, state) = bytes(Some(0));
    // One DeltaNet layer: two heads of 32 x 32, three inputs of 4 x 32 channels.
    assert_eq!((none, state), (0, 4 * (2 * 32 * 32 + 3 * 128)));
    let (five, with, _) = bytes(Some(5));
    assert_eq!(five, 5);
    let more = with - without;
    assert!(more >= 5 * state && more < 5 * (state + 4096), "{more}");
    assert_eq!(bytes(None).0, 12, "as many as agents");
    let dense = free(&options());
    assert_eq!((dense.core.stats().snapshots, dense.core.card().state_bytes_per_agent), (0, 0));
}
