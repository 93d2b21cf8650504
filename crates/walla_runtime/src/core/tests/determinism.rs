use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A reply depends on seed and prompt only, not on other agents and their timing.
    #[test]
    fn a_reply_does_not_depend_on_batch_composition(
        others in prop::collection::vec((0u64..1_000, "[a-z ]{1,40}", 1u32..40, 0usize..30), 0..7),
        lore in "[a-z ]{0,60}",
        seed in 0u64..1_000,
        prompt in "[a-z ]{1,60}",
        late in 0usize..20,
    ) {
        // Prompts with a common prefix share pages, which must not change any output.
        let prompt = format!("{lore}{prompt}");
        let expected = alone(&options(), speaker(seed, 24), &prompt);
        let mut rig = Rig::free();
        let mut coming: Vec<_> = others.into_iter().collect();
        let mut reply_id = None;
        for tick in 0..40 {
            coming.retain(|(seed, prompt, max_reply_tokens, when)| {
                if *when == tick {
                    let agent = rig.agent(speaker(*seed, *max_reply_tokens));
                    rig.ask(agent, tokens(&format!("{lore}{prompt}")));
                }
                *when > tick
            });
            if tick == late {
                let agent = rig.agent(speaker(seed, 24));
                reply_id = Some(rig.ask(agent, tokens(&prompt)));
            }
            rig.advance();
        }
        rig.run();
        rig.assert_all_ended();
        let heard = rig.reply(reply_id.expect("asked"));
        prop_assert_eq!(&heard.text, &expected.text);
        prop_assert_eq!(&heard.ends, &expected.ends);
    }
}
