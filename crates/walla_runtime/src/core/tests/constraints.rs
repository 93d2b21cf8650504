//! Replies that conform to a constraint.

use std::sync::Arc;

use walla_grammar::{Constraint, ConstraintError};
use walla_types::TokenMask;

use super::*;
use crate::api::Actions;
use crate::cues::Cues;

/// A horse for sale.
const OFFER: &str = r#"{
    "type": "object",
    "properties": {
        "item": {"enum": ["horse", "horseshoe", "saddle"]},
        "price": {"type": "integer", "minimum": 1, "maximum": 99},
        "note": {"type": "string", "maxLength": 6}
    },
    "required": ["item", "price", "note"],
    "additionalProperties": false
}"#;

fn roomy() -> EngineOptions {
    EngineOptions { max_agents: Some(16), context_tokens: 256, ..options() }
}

fn free(options: &EngineOptions) -> Rig {
    Rig::new(options, &inline_cpu(), Pacing::FreeRunning)
}

fn constrained(seed: u64, constraint: Constraint) -> AgentSpec {
    AgentSpec { constraint: Some(constraint), ..speaker(seed, 120) }
}

fn offer(seed: u64) -> AgentSpec {
    constrained(seed, Constraint::json_schema(OFFER))
}

/// Whether a text is an offer: written by hand, independent of the library.
fn is_offer(text: &str) -> bool {
    let Some(rest) = text.strip_prefix(r#"{"item":""#) else { return false };
    let Some((item, rest)) = rest.split_once(r#"","price":"#) else { return false };
    let Some((price, note)) = rest.split_once(r#","note":""#) else { return false };
    let Some(note) = note.strip_suffix(r#""}"#) else { return false };
    let has_price = price.parse::<u32>().is_ok_and(|price| (1..=99).contains(&price));
    let characters = note.replace("\\\\", "x").replace("\\", "").chars().count();
    ["horse", "horseshoe", "saddle"].contains(&item) && has_price && characters <= 6
}

#[test]
fn replies_conform_and_end_where_the_grammar_ends() {
    let mut rig = free(&roomy());
    let asks: Vec<_> = (0..12)
        .map(|seed| {
            let agent = rig.agent(offer(seed));
            rig.ask(agent, tokens("sell"))
        })
        .collect();
    rig.run();
    rig.assert_all_ended();
    let texts: Vec<_> = asks.iter().map(|ask| rig.reply(*ask)).collect();
    for heard in &texts {
        assert_eq!(heard.ends, [Ok(FinishReason::EndOfTurn)], "{heard:?}");
        assert!(is_offer(&heard.text), "{heard:?}");
        assert!(heard.usage.first_token_micros > 0);
    }
    assert!(texts.iter().any(|heard| heard.text != texts[0].text), "there is a choice");
}

/// Random tokens under the constraint of cues.
#[test]
fn replies_have_no_other_stage_directions_than_the_known_cues() {
    let mut rig = free(&roomy());
    let known = Cues::new().with_cue("smile", ["gives a <3-kiss"]).with_cue("sigh", [""; 0]);
    let agents = (0..12).map(|seed| rig.agent(constrained(seed, known.constraint())));
    let agents: Vec<_> = agents.collect();
    let mut asks = Vec::new();
    for _ in 0..8 {
        asks.extend(agents.iter().map(|agent| rig.ask(*agent, tokens("hello"))));
        rig.run();
    }
    rig.assert_all_ended();
    let (mut found, mut separated, mut bytes) = (0, 0, 0);
    for ask in asks {
        let text = &rig.reply(ask).text;
        let words = ["smile", "gives a <3-kiss", "sigh"];
        let mut others = text.clone();
        for (open, close) in [("*", "*"), ("(", ")"), ("（", "）"), ("[", "]"), ("【", "】")] {
            for word in words {
                let cue = format!("{open}{word}{close}");
                found += others.matches(&cue).count();
                others = others.replace(&cue, "");
            }
        }
        // The splitter knows each of them.
        let (speech, cues) = known.separate(text);
        separated += cues.len();
        assert_eq!(speech.trim(), others.trim(), "{text:?}");
        // The last one may be cut.
        let marks = ["*", "(", "（", "[", "【"].map(|mark| others.matches(mark).count());
        assert!(marks.iter().sum::<usize>() <= 2, "{text:?}");
        bytes += text.len();
    }
    assert!(found > 5 && bytes > 500, "{found} cues, {bytes} bytes");
    assert_eq!(found, separated);
}

/// Agents with equal constraints or actions share a grammar.
#[test]
fn a_grammar_is_compiled_once_for_all_agents() {
    let mut rig = free(&roomy());
    let start = |rig: &mut Rig, specs: &dyn Fn(u64) -> AgentSpec| {
        for seed in 0..8 {
            let agent = rig.agent(specs(seed));
            rig.ask(agent, Prompt::Chat("sell".into()));
        }
        rig.run();
        (rig.core.stats().grammars, rig.core.stats().grammar_bytes)
    };
    let (none, tables) = start(&mut rig, &|seed| speaker(seed, 4));
    assert_eq!((none, tables), (0, 0), "agents without constraints need no tables");
    let (offers, with_offers) = start(&mut rig, &offer);
    assert_eq!(offers, 1);
    assert!(with_offers > 0);
    let other = |seed| constrained(seed, Constraint::choice(["yes", "no"]));
    let (others, bytes) = start(&mut rig, &other);
    assert!(others == 2 && bytes > with_offers);
    assert_eq!(start(&mut rig, &offer), (2, bytes), "they are kept");
    let actions = |seed| {
        let policy = crate::api::ActionPolicy::Required;
        let actions = Actions { policy, ..Actions::new(actions::wave()) };
        AgentSpec { actions: Some(actions), ..speaker(seed, 8) }
    };
    assert_eq!(start(&mut rig, &actions).0, 3);
    rig.assert_all_ended();
}

/// The constraint of an ask replaces that of its agent, for its reply only.
#[test]
fn one_ask_can_have_a_constraint_of_its_own() {
    let mut rig = free(&roomy());
    let agents = [rig.agent(offer(1)), rig.agent(speaker(2, 20))];
    for agent in agents {
        let choice = AskOptions::constraint(Constraint::choice(["yes", "no"]));
        let answer = rig.ask_with(agent, tokens("sell?"), choice);
        let next = rig.ask(agent, tokens("sell"));
        rig.run();
        assert!(
            ["yes", "no"].contains(&rig.reply(answer).text.as_str()),
            "{:?}",
            rig.reply(answer)
        );
        let next = &rig.reply(next).text;
        assert_eq!(is_offer(next), agent == agents[0], "{next}");
    }
    rig.assert_all_ended();
}

/// Neither the constraint of another agent nor the number of agents changes a token.
#[test]
fn other_agents_and_their_constraints_change_no_token() {
    let plain = alone(&roomy(), speaker(5, 40), "hello").text;
    let single = {
        let mut rig = free(&roomy());
        let agent = rig.agent(offer(3));
        let ask = rig.ask(agent, tokens("hello"));
        rig.run();
        rig.reply(ask).clone()
    };
    let mut rig = free(&roomy());
    let speaking = rig.agent(speaker(5, 40));
    let first = rig.ask(speaking, tokens("hello"));
    let same = rig.agent(offer(3));
    let second = rig.ask(same, tokens("hello"));
    for seed in 10..20 {
        let choice = Constraint::choice([format!("yes {seed}"), format!("no {seed}")]);
        let agent = rig.agent(constrained(seed, choice));
        rig.ask(agent, tokens("hello"));
    }
    rig.run();
    rig.assert_all_ended();
    assert_eq!(rig.reply(first).text, plain);
    assert_eq!(rig.reply(second).text, single.text);
    assert!(is_offer(&single.text), "{single:?}");
}

/// Masks that arrive late delay their replies, change no token, and hold up no other agent.
#[test]
fn late_masks_change_no_token() {
    let replies = |delays: &dyn Fn(u32) -> u32| {
        let mut rig = free(&roomy());
        rig.core.constraints.delays = (0..5_000).map(delays).collect();
        let speaking = rig.agent(speaker(5, 40));
        let mut asks = vec![rig.ask(speaking, tokens("hello"))];
        for seed in 0..6 {
            let agent = rig.agent(offer(seed));
            asks.push(rig.ask(agent, tokens("hello")));
        }
        let mut spoken_after = None;
        for round in 0..40_000 {
            rig.advance();
            if !rig.reply(asks[0]).ends.is_empty() {
                spoken_after.get_or_insert(round);
            }
        }
        rig.assert_all_ended();
        let texts: Vec<_> = asks.iter().map(|ask| rig.reply(*ask).text.clone()).collect();
        (texts, spoken_after.expect("it ends"), rig.core.stats())
    };
    let (expected, at_once, stats) = replies(&|_| 0);
    assert!(stats.masks > 6 * 10 && stats.masks_late == 0, "{stats:?}");
    let masks = stats.masks;
    assert!(expected[1..].iter().all(|text| is_offer(text)), "{expected:?}");
    for seed in 1..6 {
        let (texts, spoken_after, stats) =
            replies(&|n| n.wrapping_mul(2_654_435_761_u32.wrapping_mul(seed)) >> 28);
        assert_eq!(texts, expected, "{seed}");
        assert!(spoken_after <= 2 * at_once, "{spoken_after} {at_once}");
        assert!(stats.masks == masks && (1..masks).contains(&stats.masks_late), "{stats:?}");
    }
}

#[test]
fn forced_tokens_are_evaluated_as_prompt_rows() {
    let mut rig = free(&roomy());
    let text = "The bridge over the river is closed since the storm.";
    let agent = rig.agent(constrained(1, Constraint::choice([text])));
    let ask = rig.ask(agent, tokens("ab"));
    rig.run();
    let heard = rig.reply(ask);
    assert_eq!((heard.text.as_str(), &heard.ends[..]), (text, &[Ok(FinishReason::EndOfTurn)][..]));
    assert_eq!(rig.core.stats().tokens, 0, "nothing was sampled");
    assert_eq!(heard.usage.forced_tokens, heard.usage.reply_tokens);
    // A text that two choices share is forced too, up to the difference.
    let agent = rig.agent(constrained(1, Constraint::choice(["the same a", "the same b"])));
    rig.ask(agent, tokens("ab"));
    rig.run();
    assert!((1..=2).contains(&rig.core.stats().tokens), "{}", rig.core.stats().tokens);
    rig.assert_all_ended();
}

#[test]
fn a_limit_cuts_a_reply_and_says_so() {
    let mut rig = free(&roomy());
    let agent = rig.agent(AgentSpec { max_reply_tokens: 7, ..offer(1) });
    let cut = rig.ask(agent, tokens("ab"));
    let stopping = AgentSpec { stop_strings: vec!["price".into()], ..offer(1) };
    let agent = rig.agent(stopping);
    let stopped = rig.ask(agent, tokens("ab"));
    rig.run();
    assert_eq!(rig.reply(cut).ends, [Ok(FinishReason::Length)]);
    assert_eq!(rig.reply(cut).tokens, 7);
    assert_eq!(rig.reply(stopped).ends, [Ok(FinishReason::Stop { index: 0 })]);
    assert!(!rig.reply(stopped).text.contains("price"));
}

#[test]
fn an_unusable_constraint_fails_its_own_reply_with_the_reason() {
    let mut rig = free(&roomy());
    let refused = constrained(1, Constraint::json_schema(r#"{"not": {"type": "string"}}"#));
    let agents = [refused, offer(2)].map(|spec| rig.agent(spec));
    let asks = agents.map(|agent| rig.ask(agent, tokens("ab")));
    rig.run();
    let Err(ReplyError::Constraint(error)) = &rig.reply(asks[0]).ends[0] else {
        panic!("{:?}", rig.reply(asks[0]));
    };
    let ConstraintError::UnsupportedKeyword { keyword, .. } = &**error else { panic!("{error}") };
    assert_eq!(keyword, "not");
    assert!(is_offer(&rig.reply(asks[1]).text));
    rig.assert_all_ended();
}

/// The agent's own mask holds too; together they may allow nothing.
#[test]
fn the_agents_mask_and_the_constraint_hold_together() {
    let digits = TokenMask::allow(300, (0x30..0x3a).map(TokenId)).expect("a mask");
    let with_digits = |constraint| {
        let spec = constrained(4, constraint);
        let sampling = spec.sampling.to_builder().allowed_tokens(Arc::new(digits.clone()));
        AgentSpec { sampling: sampling.build().expect("valid"), ..spec }
    };
    let mut rig = free(&roomy());
    let agents = [Constraint::regex("[0-9a-z]{4}x?"), Constraint::choice(["abc", "abd"])];
    let agents = agents.map(|constraint| rig.agent(with_digits(constraint)));
    let asks = agents.map(|agent| rig.ask(agent, tokens("ab")));
    rig.run();
    let heard = rig.reply(asks[0]);
    assert!(heard.text.len() >= 4 && heard.text.bytes().all(|b| b.is_ascii_digit()), "{heard:?}");
    assert_eq!(rig.reply(asks[1]).ends, [Err(ReplyError::NothingAllowed)]);
}

#[test]
fn a_reply_that_is_cancelled_or_removed_while_its_mask_is_computed_ends_once() {
    let mut rig = free(&roomy());
    for removes in [false, true] {
        for rounds in 0..30 {
            let agent = rig.agent(offer(rounds));
            let reply_id = rig.ask(agent, tokens("ab"));
            for _ in 0..rounds {
                rig.advance();
            }
            rig.command(match removes {
                true => Command::RemoveAgent { agent },
                false => Command::Cancel { agent, reply_id },
            });
            rig.run();
            assert_eq!(rig.reply(reply_id).ends.len(), 1);
        }
    }
}
