//! Constraints apply to speech only.

use walla_grammar::Constraint;

use super::*;

const SAID: [&str; 2] = ["yes, at noon", "no, never"];

/// Reasons freely, and speaks one of two texts.
fn deciding(seed: u64, thinking: bool, max_reasoning_tokens: u32) -> AgentSpec {
    AgentSpec {
        thinking,
        max_reasoning_tokens,
        constraint: Some(Constraint::choice(SAID)),
        ..speaker(seed, 60)
    }
}

/// The template opens the block: it is closed by its limit or by the model, at any token.
#[test]
fn a_constraint_begins_behind_the_block_that_the_prompt_opens() {
    let options = model("<think>\n", &THINK);
    let mut rig = rig(&options);
    let mut thought = 0;
    for (seed, limit) in [(1, 0), (2, 1), (3, 5), (4, 20), (5, 20)] {
        let agent = rig.agent(deciding(seed, false, limit));
        let ask = rig.ask(agent, chat("Do we meet?"));
        rig.run();
        let heard = rig.reply(ask);
        assert_eq!(heard.ends, [Ok(FinishReason::EndOfTurn)], "{heard:?}");
        assert!(SAID.contains(&heard.text.as_str()), "{heard:?}");
        thought += heard.reasoning_tokens;
    }
    assert!(thought > 0);
    rig.assert_all_ended();
}

/// The model opens a block itself, or speaks at once.
#[test]
fn a_model_may_open_a_block_before_constrained_speech() {
    let (mut thought, mut spoken) = (0, 0);
    let mut rig = rig(&model("", &THINK));
    for seed in 0..24 {
        // All tokens with about equal probability.
        let sampling = Sampling::builder().temperature(100.0).top_k(0).min_p(0.0).top_p(1.0);
        let sampling = sampling.seed(seed).build().expect("valid");
        let spec = AgentSpec { sampling, ..deciding(seed, true, 30) };
        let agent = rig.agent(spec);
        let ask = rig.ask(agent, chat("Do we meet?"));
        rig.run();
        let heard = rig.reply(ask);
        assert_eq!(heard.ends, [Ok(FinishReason::EndOfTurn)], "{heard:?}");
        assert!(SAID.contains(&heard.text.as_str()), "{heard:?}");
        if heard.usage.reasoning_tokens > 0 { thought += 1 } else { spoken += 1 }
    }
    assert!(thought > 0 && spoken > 0, "{thought} {spoken}");
    rig.assert_all_ended();
}

/// A model that often ends its turn within the block: the reply conforms all the same, with a block
/// that the prompt or the model opens, with steps that are launched ahead, and on a recurrent
/// model.
#[test]
fn a_turn_that_ends_within_a_block_is_no_end_of_a_constrained_reply() {
    for end in ["<think>\n", ""] {
        let mut rig = rig(&model(end, &THINK));
        let mut thought = 0;
        for seed in 0..12 {
            let end_of_turn = TokenId(token(&rig, "<|im_end|>"));
            let open = TokenId(token(&rig, THINK[0]));
            let spec = deciding(seed, true, 60);
            let sampling = spec.sampling.to_builder().bias(end_of_turn, 6.0).bias(open, 6.0);
            let agent = rig.agent(AgentSpec { sampling: sampling.build().expect("valid"), ..spec });
            let ask = rig.ask(agent, chat("Do we meet?"));
            rig.run();
            let heard = rig.reply(ask);
            assert_eq!(heard.ends, [Ok(FinishReason::EndOfTurn)], "{end:?} {seed}: {heard:?}");
            assert!(SAID.contains(&heard.text.as_str()), "{end:?} {seed}: {heard:?}");
            thought += heard.usage.reasoning_tokens;
        }
        assert!(thought > 0, "{end:?}");
        rig.assert_all_ended();
    }
}

/// Without a constraint the model speaks behind the block that the engine closes. It may still end
/// its turn there, with its first token.
#[test]
fn a_turn_that_ends_within_a_block_goes_on_with_speech() {
    let options = model("<think>\n", &THINK);
    let (mut spoken, mut tokens) = (0, Vec::new());
    for seed in 0..12 {
        let mut rig = rig(&options);
        let end = token(&rig, "<|im_end|>");
        let agent = rig.agent(drawing(seed, &[97, 98, 99, end], (20, 200)));
        let ask = rig.ask(agent, chat("Hi"));
        rig.run();
        rig.assert_all_ended();
        let heard = rig.reply(ask);
        assert_eq!(heard.ends.len(), 1);
        assert!(heard.reasoning.len() < 60, "the model ends its turn: {heard:?}");
        spoken += heard.text.len();
        tokens.push(sampled_tokens(&rig, agent, prompt_tokens(&rig, ask)));
        // The end that was drawn within the block is not part of the sequence.
        let close = TokenId(token(&rig, THINK[1]));
        let drawn = tokens.last().expect("one was pushed");
        let before = drawn.iter().take_while(|token| **token != close);
        assert!(before.copied().all(|token| token.0 != end), "{drawn:?}");
    }
    assert!(spoken > 12, "{spoken}");
}
