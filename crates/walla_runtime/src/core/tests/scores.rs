//! Scores of texts: bits do not depend on the batch, on pages, or on failed steps.

use walla_doubles::faulty::{Call, Fault, FaultPlan};

use super::faults::faulty;
use super::*;
use crate::api::{Speaker, Turn, Unsupported};

const PROMPT: &str = "The guard sees a stranger at the gate at night, and says the following: ";
const TEXTS: [&str; 9] = ["Halt!", "", "Halt! Who", "x", "Welcome", "Hal", "Go", "Halt!", "We"];

fn scored(rig: &mut Rig, agent: AgentId, prompt: Prompt) -> Vec<Score> {
    let ask = rig.ask_with(agent, prompt, AskOptions::score(TEXTS));
    rig.run();
    scores_of(rig, ask)
}

fn scores_of(rig: &Rig, ask: ReplyId) -> Vec<Score> {
    let heard = rig.reply(ask);
    assert_eq!(heard.ends, [Ok(FinishReason::Scored)]);
    assert!(heard.scores.iter().map(|score| score.index).eq(0..TEXTS.len() as u32));
    assert_eq!((heard.text.as_str(), heard.usage.reply_tokens), ("", 0));
    heard.scores.clone()
}

fn expected(options: &EngineOptions) -> Vec<Score> {
    let mut rig = Rig::new(options, &inline_cpu(), Pacing::FreeRunning);
    let agent = rig.agent(speaker(1, 9));
    let scores = scored(&mut rig, agent, tokens(PROMPT));
    let of_text: Vec<u32> = scores.iter().map(|score| score.tokens).collect();
    let bytes: Vec<u32> = TEXTS.iter().map(|text| text.len() as u32).collect();
    assert!(of_text.iter().zip(&bytes).all(|(tokens, bytes)| tokens <= bytes), "{of_text:?}");
    assert_eq!((of_text[1], scores[1].log_probability), (0, 0.0), "an empty text");
    assert!(scores[0].log_probability < -1.0 && scores[0].log_probability.is_finite());
    assert!(scores[2].log_probability < scores[0].log_probability, "one continues the other");
    assert_eq!(scores[7], Score { index: 7, ..scores[0] });
    scores
}

fn models() -> [EngineOptions; 2] {
    [options(), EngineOptions { context_tokens: 128, max_agents: Some(8), ..recurrent() }]
}

#[test]
fn scores_do_not_depend_on_other_agents_and_steps() {
    for options in models() {
        let expected = expected(&options);
        for (max_rows, max_agents) in [(32, 8), (7, 8), (32, 2), (1, 3)] {
            let options = EngineOptions {
                max_rows: Some(max_rows),
                max_agents: Some(max_agents),
                ..options.clone()
            };
            let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
            let speaking = rig.agent(speaker(5, 60));
            let spoken = rig.ask(speaking, tokens("Tell me everything."));
            let scoring = [rig.agent(speaker(1, 9)), rig.agent(speaker(2, 0))];
            let asks =
                scoring.map(|agent| rig.ask_with(agent, tokens(PROMPT), AskOptions::score(TEXTS)));
            rig.run();
            for ask in asks {
                assert_eq!(scores_of(&rig, ask), expected, "{max_rows} {max_agents}");
            }
            assert_eq!(
                rig.reply(spoken).text,
                alone(&options, speaker(5, 60), "Tell me everything.").text
            );
        }
    }
}

/// A prompt is evaluated once for all texts, also with a recurrent state.
#[test]
fn a_prompt_is_evaluated_once() {
    for options in models() {
        let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
        let agent = rig.agent(speaker(1, 9));
        let ask = rig.ask_with(agent, tokens(PROMPT), AskOptions::score(TEXTS));
        rig.run();
        let of_texts: u32 = scores_of(&rig, ask).iter().map(|score| score.tokens).sum();
        let expected = u64::from(PROMPT.len() as u32 - 1 + of_texts);
        // Parts of one row do not count as prefill: two of the texts, and ends.
        let evaluated = rig.core.stats().prefill_tokens;
        assert!((expected - 12..=expected).contains(&evaluated), "{evaluated} of {expected}");
    }
}

#[test]
fn failed_steps_change_no_score() {
    let expected = expected(&options());
    for call in Call::ALL.into_iter().filter(|call| call.is_play()) {
        for nth in 0..12 {
            let (registry, _) = faulty(FaultPlan::new(1).fail_call(call, nth, Fault::Failed));
            let mut rig = Rig::new(&options(), &registry, Pacing::FreeRunning);
            let agent = rig.agent(speaker(1, 9));
            assert_eq!(scored(&mut rig, agent, tokens(PROMPT)), expected, "{call:?} {nth}");
        }
    }
}

/// Pages for two prompts at most: agents lose theirs while their texts are scored.
#[test]
fn scores_survive_a_lack_of_pages() {
    let expected = expected(&options());
    let options = EngineOptions { kv_tokens: Some(16 * 11), ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let agents: Vec<_> =
        (0..6).map(|n| rig.agent(AgentSpec { priority: n, ..speaker(1, 9) })).collect();
    let asks: Vec<_> = agents
        .iter()
        .map(|&agent| rig.ask_with(agent, tokens(PROMPT), AskOptions::score(TEXTS)))
        .collect();
    rig.run();
    for ask in asks {
        assert_eq!(scores_of(&rig, ask), expected);
    }
}

#[test]
fn a_score_changes_no_conversation() {
    let mut rig = Rig::free();
    let turns = vec![Turn::new(Speaker::User, "Hello."), Turn::new(Speaker::Agent, "Hm?")];
    let spec = AgentSpec { turns, ..speaker(3, 12) };
    let [agent, other] = [spec.clone(), spec].map(|spec| rig.agent(spec));
    let scores = scored(&mut rig, agent, Prompt::Chat("Who are you?".into()));
    assert!(scores[0].log_probability < 0.0);
    let again = scored(&mut rig, agent, Prompt::Chat("Who are you?".into()));
    assert_eq!(again, scores);
    let asks = [agent, other].map(|agent| rig.ask(agent, Prompt::Chat("Who are you?".into())));
    rig.run();
    assert!(!rig.reply(asks[0]).text.is_empty());
    assert_eq!(rig.reply(asks[0]).text, rig.reply(asks[1]).text);
    let history = |rig: &mut Rig, agent| {
        rig.core.agents.of_client(HOST, agent).expect("it lives").history.turns().len()
    };
    assert_eq!(history(&mut rig, agent), history(&mut rig, other));
}

#[test]
fn what_cannot_be_scored_is_refused() {
    let mut rig = Rig::free();
    let agent = rig.agent(speaker(1, 9));
    let long = "long".repeat(60);
    let refused = [
        (rig.ask_with(agent, Prompt::Again, AskOptions::score(TEXTS)), true),
        (rig.ask_with(agent, Prompt::Results(Vec::new()), AskOptions::score(TEXTS)), true),
        (rig.ask_with(agent, tokens(PROMPT), AskOptions::score(["short", &long])), false),
        (rig.ask_with(agent, tokens(""), AskOptions::score(TEXTS)), false),
    ];
    let nothing = rig.ask_with(agent, tokens(PROMPT), AskOptions::score(Vec::<String>::new()));
    rig.run();
    for (ask, is_unsupported) in refused {
        let [Err(error)] = &rig.reply(ask).ends[..] else { panic!("{:?}", rig.reply(ask).ends) };
        assert_eq!(*error == ReplyError::Unsupported(Unsupported::Scores), is_unsupported);
    }
    assert_eq!(rig.reply(nothing).ends, [Ok(FinishReason::Scored)]);
    assert!(rig.reply(nothing).scores.is_empty());
}

#[test]
fn a_cancelled_score_ends_and_the_agent_speaks() {
    let mut rig = Rig::free();
    let agent = rig.agent(speaker(1, 9));
    for steps in 0..30 {
        let ask = rig.ask_with(agent, tokens(PROMPT), AskOptions::score(TEXTS));
        for _ in 0..steps {
            rig.advance();
        }
        rig.command(Command::Cancel { agent, reply_id: ask });
        let spoken = rig.ask(agent, tokens("Well"));
        rig.run();
        assert_eq!(rig.reply(ask).ends.len(), 1);
        assert_eq!(rig.reply(spoken).text, alone(&options(), speaker(1, 9), "Well").text);
    }
}

/// Agents whose texts begin alike share the prompt only, and wait for nothing else: tokens with
/// outputs are evaluated by each of them. There are more agents than slots.
#[test]
fn texts_that_begin_alike_are_all_scored() {
    let text = |n: usize| format!("{}!", "halt ".repeat(n % 7));
    for options in models() {
        let options = EngineOptions { max_agents: Some(4), context_tokens: 256, ..options };
        let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
        let prompt = || tokens("The guard says: ");
        let agents: Vec<_> = (0..7).map(|_| rig.agent(AgentSpec::new(""))).collect();
        let texts = |agent: usize| AskOptions::score((0..7).map(|n| text(agent + n)));
        let asks = agents.iter().enumerate();
        let asks: Vec<_> =
            asks.map(|(n, agent)| rig.ask_with(*agent, prompt(), texts(n))).collect();
        rig.run();
        let first = rig.reply(asks[0]).scores.clone();
        for (agent, ask) in asks.into_iter().enumerate() {
            let heard = rig.reply(ask);
            assert_eq!(heard.ends, [Ok(FinishReason::Scored)]);
            for (n, score) in heard.scores.iter().enumerate() {
                let same = first[(agent + n) % 7];
                assert_eq!(*score, Score { index: n as u32, ..same }, "{agent} {n}");
            }
        }
    }
}
