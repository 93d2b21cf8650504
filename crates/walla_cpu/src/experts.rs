//! Routing of a mixture of experts: which rows use which expert, and in which order.

use bytemuck::{Pod, Zeroable};
use walla_types::ExpertScore;

use crate::operands::ROWS;

/// Lower bound of the sum of sigmoids, as in llama.cpp.
const SUM_MIN: f32 = 6e-5;

/// One chosen expert of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Choice {
    pub expert: u32,
    pub weight: f32,
}

/// Up to [`ROWS`] rows of a step that use the same expert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    pub expert: u32,
    pub count: u32,
    /// Rows of the step, ascending.
    pub rows: [u32; ROWS],
    /// Weight of the expert for each of these rows.
    pub weights: [f32; ROWS],
}

/// Maximum number of blocks of `choices` choices of `count` experts: every used expert has at most
/// one block that is not full.
pub(crate) fn max_blocks(choices: usize, count: usize) -> usize {
    choices.saturating_add(choices.min(count).saturating_mul(ROWS - 1)) / ROWS
}

/// Chooses `chosen.len()` experts of a row, at most as many as `logits`, and computes their
/// weights. `chosen` is in ascending order of the experts afterwards.
pub(crate) fn choose(
    score: ExpertScore,
    logits: &[f32],
    bias: Option<&[f32]>,
    chosen: &mut [Choice],
) {
    let score_of = |expert: usize| match score {
        ExpertScore::Softmax => logits[expert],
        ExpertScore::Sigmoid => sigmoid(logits[expert]),
    };
    // The largest first. While experts are chosen, `weight` is the score that decides.
    let mut held = 0;
    for expert in 0..logits.len() {
        let bias = bias.map_or(0.0, |bias| bias[expert]);
        // Adding 0 makes a negative zero equal to zero in the total order.
        let weight = score_of(expert) + bias + 0.0;
        let place = chosen[..held].partition_point(|held| held.weight.total_cmp(&weight).is_ge());
        if place == chosen.len() {
            continue;
        }
        held = chosen.len().min(held + 1);
        chosen[place..held].rotate_right(1);
        chosen[place] = Choice { expert: expert as u32, weight };
    }
    chosen.sort_unstable_by_key(|choice| choice.expert);
    for choice in &mut *chosen {
        choice.weight = score_of(choice.expert as usize);
    }
    if score == ExpertScore::Softmax {
        let larger = |max: f32, choice: &Choice| max.max(choice.weight);
        let max = chosen.iter().fold(f32::NEG_INFINITY, larger);
        chosen.iter_mut().for_each(|choice| choice.weight = libm::expf(choice.weight - max));
    }
    let sum: f32 = chosen.iter().map(|choice| choice.weight).sum();
    let sum = if score == ExpertScore::Sigmoid && sum < SUM_MIN { SUM_MIN } else { sum };
    chosen.iter_mut().for_each(|choice| choice.weight /= sum);
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + libm::expf(-x))
}

/// Groups rows by expert: blocks in ascending order of experts, with ascending rows. `choices` are
/// `used` for each row; `counts` has one element for each expert. Returns the number of blocks and
/// of experts in use.
pub(crate) fn group(
    choices: &[Choice],
    used: usize,
    counts: &mut [u32],
    blocks: &mut [Block],
) -> (usize, usize) {
    counts.fill(0);
    for choice in choices {
        counts[choice.expert as usize] += 1;
    }
    // From here on, `counts` has the next free place of each expert: `ROWS` places in a block.
    let (mut block_count, mut experts) = (0, 0);
    for count in &mut *counts {
        experts += usize::from(*count > 0);
        let own = (*count as usize).div_ceil(ROWS);
        *count = (block_count * ROWS) as u32;
        block_count += own;
    }
    for (i, choice) in choices.iter().enumerate() {
        let place = &mut counts[choice.expert as usize];
        let (block, lane) = (*place as usize / ROWS, *place as usize % ROWS);
        *place += 1;
        let block = &mut blocks[block];
        (block.expert, block.count) = (choice.expert, lane as u32 + 1);
        (block.rows[lane], block.weights[lane]) = ((i / used) as u32, choice.weight);
    }
    (block_count, experts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(
        score: ExpertScore,
        logits: &[f32],
        bias: Option<&[f32]>,
        used: usize,
    ) -> Vec<Choice> {
        let mut chosen = vec![Choice::default(); used];
        choose(score, logits, bias, &mut chosen);
        chosen
    }

    fn experts(choices: &[Choice]) -> Vec<u32> {
        choices.iter().map(|choice| choice.expert).collect()
    }

    fn sum(choices: &[Choice]) -> f32 {
        choices.iter().map(|choice| choice.weight).sum()
    }

    #[test]
    fn the_largest_are_chosen_in_ascending_order_and_of_equal_ones_the_lower() {
        let of = |logits: &[f32], used| experts(&chosen(ExpertScore::Softmax, logits, None, used));
        assert_eq!(of(&[1.0, 4.0, 2.0, 3.0], 2), [1, 3]);
        assert_eq!(of(&[3.0, 4.0, 2.0, 3.0], 2), [0, 1]);
        assert_eq!(of(&[1.0; 5], 3), [0, 1, 2]);
        assert_eq!(of(&[0.0, -0.0, 0.0, -0.0], 2), [0, 1]);
        assert_eq!(of(&[2.0, 1.0, 2.0, 2.0], 2), [0, 2]);
        assert_eq!(of(&[5.0, 1.0, 2.0], 3), [0, 1, 2]);
        assert_eq!(of(&[f32::NEG_INFINITY; 3], 1), [0]);
    }

    #[test]
    fn softmax_weights_are_those_of_all_experts_divided_by_their_sum() {
        let logits = [0.5, 2.0, -1.0, 1.0_f32];
        let choices = chosen(ExpertScore::Softmax, &logits, None, 2);
        let all: f32 = logits.iter().map(|l| l.exp()).sum();
        let p = logits.map(|l| l.exp() / all);
        for (choice, expert) in choices.iter().zip([1, 3]) {
            assert!((choice.weight - p[expert] / (p[1] + p[3])).abs() < 1e-6);
        }
        assert!(
            (sum(&chosen(ExpertScore::Softmax, &[1e4, -1e4, 1e4], None, 3)) - 1.0).abs() < 1e-6
        );
    }

    #[test]
    fn a_bias_decides_the_choice_and_not_the_weights() {
        let logits = [0.0, 1.0, 2.0, 3.0];
        let bias = [9.0, 0.0, 0.0, 9.0];
        let choices = chosen(ExpertScore::Sigmoid, &logits, Some(&bias), 2);
        let s = [0, 3].map(|e: usize| sigmoid(logits[e]));
        assert_eq!(experts(&choices), [0, 3]);
        assert!((choices[0].weight - s[0] / (s[0] + s[1])).abs() < 1e-6);
        assert!((sum(&choices) - 1.0).abs() < 1e-6);
        // The lower bound of the sum.
        let tiny = chosen(ExpertScore::Sigmoid, &[-20.0, -20.0], None, 1);
        assert!((tiny[0].weight - sigmoid(-20.0) / SUM_MIN).abs() < 1e-6);
    }

    #[test]
    fn scores_that_are_not_finite_choose_different_experts_and_reach_the_weights() {
        for score in [ExpertScore::Softmax, ExpertScore::Sigmoid] {
            for nan in [f32::NAN, -f32::NAN] {
                let choices = chosen(score, &[nan; 4], None, 3);
                assert_eq!(experts(&choices), [0, 1, 2]);
                assert!(choices.iter().all(|choice| choice.weight.is_nan()));
            }
        }
    }

    #[test]
    fn blocks_are_full_and_in_order() {
        // Row `r` uses expert 1, and expert 0 or 3.
        let choice = |expert, weight| Choice { expert, weight };
        let rows = 20;
        let choices: Vec<Choice> = (0..rows)
            .flat_map(|r| {
                let (a, b) = (choice(1, r as f32), choice(if r < 4 { 0 } else { 3 }, 0.5));
                if r < 4 { [b, a] } else { [a, b] }
            })
            .collect();
        let mut blocks = vec![Block::default(); max_blocks(choices.len(), 5)];
        let (count, experts) = group(&choices, 2, &mut [0; 5], &mut blocks);
        assert_eq!((count, experts), (1 + 3 + 2, 3));
        let found: Vec<_> = blocks[..count].iter().map(|b| (b.expert, b.count)).collect();
        assert_eq!(found, [(0, 4), (1, 8), (1, 8), (1, 4), (3, 8), (3, 8)]);
        let rows_of_1: Vec<u32> =
            blocks[1..4].iter().flat_map(|b| b.rows[..b.count as usize].to_vec()).collect();
        assert_eq!(rows_of_1, (0..20).collect::<Vec<u32>>());
        assert_eq!(blocks[3].weights[3], 19.0);
    }

    #[test]
    fn the_bound_of_blocks_holds_for_every_distribution() {
        for experts in 1..=6_usize {
            for rows in 1..=40_usize {
                // All rows use the first expert, or rows take turns.
                for used in 1..=experts {
                    let choices: Vec<Choice> = (0..rows * used)
                        .map(|i| {
                            let (row, nth) = (i / used, i % used);
                            let expert = if row % 3 == 0 { nth } else { (row + nth) % experts };
                            Choice { expert: expert as u32, weight: 1.0 }
                        })
                        .collect();
                    let mut blocks = vec![Block::default(); max_blocks(choices.len(), experts)];
                    let (count, _) = group(&choices, used, &mut vec![0; experts], &mut blocks);
                    assert!(count <= blocks.len());
                }
            }
        }
    }
}
