//! Constraints apply to speech only.

use walla_constraint::Constraint;

use super::*;

const SAID: [&str; 2] = ["yes, at noon", "no, never"];

/// Reasons freely, and speaks one of two texts.
fn deciding(seed: u64, thinking: bool, reasoning_tokens_max: u32) -> AgentSpec {
    AgentSpec {
        thinking,
        reasoning_tokens_max,
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
