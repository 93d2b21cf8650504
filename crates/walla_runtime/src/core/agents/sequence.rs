//! The sequence of an agent: its tokens, and which of them the cache holds. Only this module
//! changes them.

use std::ops::Range;

use walla_types::{MAX_PENALTY_WINDOW, TokenId};

use crate::api::AgentId;

/// Minimum number of tokens for which keys are shifted.
const SHIFTED_MIN: usize = 32;

/// Distinguishes current results of an agent from results that are no longer needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) struct Epoch {
    agent: AgentId,
    version: u32,
}

/// The sequence of an agent.
///
/// `tokens` holds every token of the sequence that the host knows; the ledger holds the number of
/// submitted positions. Known tokens that are not submitted are fed by value (prompt or recompute).
/// If all known tokens are submitted and a sampled token is in flight, the next row can be launched
/// ahead with the token that is stored on the device.
#[derive(Debug)]
pub(in crate::core) struct SequenceState {
    tokens: Vec<TokenId>,
    /// Tokens in the cache whose steps have completed. Other agents may share them.
    evaluated: u32,
    /// Tokens in front of the first one whose keys were shifted. Later ones are approximate, and no
    /// other agent may share them.
    exact: u32,
    /// The cache began with tokens of a file. Nothing of it is `exact`: a manipulated file must not
    /// change the replies of other agents.
    is_loaded: bool,
    /// Maximum length of the sequence since it was empty.
    reached: u32,
    /// Draws submitted whose results the host has not read.
    unread: u32,
    /// Changes when results in flight no longer concern the agent. Unique across agents: an agent
    /// that takes a freed slot must not take the results of the previous one.
    epoch: Epoch,
    /// Step at which the agent last had a row: the least recently used idle agent loses its pages
    /// first.
    last_step: u64,
    /// Tick (frame, or step without a budget) since which the agent has had work but no row.
    waiting_since: u64,
    /// The client's grant from which the agent last took steps, and their number.
    grant: u64,
    taken: u32,
}

impl SequenceState {
    pub fn new(agent: AgentId) -> Self {
        Self {
            tokens: Vec::new(),
            evaluated: 0,
            exact: u32::MAX,
            is_loaded: false,
            reached: 0,
            unread: 0,
            epoch: Epoch { agent, version: 0 },
            last_step: 0,
            waiting_since: 0,
            grant: 0,
            taken: 0,
        }
    }

    /// Sets the token buffer, which is reused and has capacity for a whole context.
    pub fn set_buffer(&mut self, buffer: Vec<TokenId>, context_tokens: u32) {
        self.tokens = buffer;
        self.tokens.clear();
        // One more than the context: the last token of a full one is known and never evaluated.
        self.tokens.reserve_exact(context_tokens as usize + 1);
    }

    /// Takes the token buffer, for another agent. The cache holds nothing of the sequence.
    pub fn take_buffer(&mut self) -> Vec<TokenId> {
        std::mem::take(&mut self.tokens)
    }

    /// Every token of the sequence that the host knows.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Known tokens whose cache entries other agents may share.
    pub fn evaluated(&self) -> &[TokenId] {
        &self.tokens[..self.evaluated.min(self.exact) as usize]
    }

    /// Evaluated tokens that the agent itself may copy: also of a file, but without shifted keys.
    pub fn copyable(&self) -> &[TokenId] {
        if self.is_loaded { &self.tokens[..self.evaluated as usize] } else { self.evaluated() }
    }

    /// Whether the cache began with tokens of a file.
    pub fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// Number of tokens, at the beginning, whose cache entries are or will be exact.
    pub fn exact(&self) -> u32 {
        self.exact
    }

    /// Draws submitted whose results the host has not read.
    pub fn unread(&self) -> u32 {
        self.unread
    }

    /// Step at which the agent last had a row.
    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    /// Tick since which the agent has had work but no row.
    pub fn waiting_since(&self) -> u64 {
        self.waiting_since
    }

    /// Number of steps that the agent took of its client's grant with this number.
    pub fn taken_of(&self, grant: u64) -> u32 {
        if self.grant == grant { self.taken } else { 0 }
    }

    /// Whether a result with this epoch concerns the agent's current sequence.
    pub fn expects(&self, epoch: Epoch) -> bool {
        self.epoch == epoch
    }

    /// Begins the sequence of a reply with these tokens.
    pub fn begin(&mut self, prompt: &[TokenId], ticks: u64) {
        self.tokens.clear();
        self.tokens.extend_from_slice(prompt);
        self.forget_in_flight();
        self.waiting_since = ticks;
    }

    /// Appends tokens that were not sampled. Results in flight are discarded, because they would
    /// follow other tokens.
    pub fn append_known(&mut self, tokens: &[TokenId]) {
        self.tokens.extend_from_slice(tokens);
        self.forget_in_flight();
    }

    /// The agent has rows in the submitted step, after which its sequence has `tokens` tokens.
    pub fn stepped(&mut self, step: u64, tokens: u32, ticks: u64) {
        self.last_step = step;
        self.reached = self.reached.max(tokens);
        self.waiting_since = ticks;
    }

    /// The agent has rows in a submitted step of its background prefill, after which its sequence
    /// has `tokens` tokens. Such a step is no use of the cache: an agent that was never asked loses
    /// its pages first.
    pub fn prefilled(&mut self, tokens: u32) {
        self.reached = self.reached.max(tokens);
    }

    /// Epoch of the results of a step.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// A step has completed, after which the cache holds `tokens` tokens.
    pub fn completed(&mut self, tokens: u32) {
        self.evaluated = self.evaluated.max(tokens.min(self.tokens.len() as u32));
    }

    /// Charges a step to its client's grant with this number.
    pub fn charge(&mut self, grant: u64) {
        self.taken = self.taken_of(grant) + 1;
        self.grant = grant;
    }

    /// A draw was submitted. Returns the epoch of its result.
    pub fn drawing(&mut self) -> Epoch {
        self.unread += 1;
        self.epoch
    }

    /// A draw's result was read.
    pub fn read_draw(&mut self) {
        self.unread = self.unread.saturating_sub(1);
    }

    /// Appends the token that was sampled at `position`.
    pub fn append_sampled(&mut self, position: u32, token: TokenId) {
        self.evaluated = self.evaluated.max(position + 1);
        debug_assert_eq!(self.tokens.len() as u32, position + 1, "results arrive in order");
        self.tokens.push(token);
    }

    /// Removes the latest token, which was sampled. Results in flight are discarded.
    pub fn drop_sampled(&mut self) {
        self.tokens.pop();
        self.evaluated = self.evaluated.min(self.tokens.len() as u32);
        self.forget_in_flight();
    }

    /// Time does not count during a pause: the agent waits since this tick.
    pub fn wait_since(&mut self, ticks: u64) {
        self.waiting_since = ticks;
    }

    /// Number of known tokens that these tokens begin with.
    pub fn common_with(&self, tokens: &[TokenId]) -> u32 {
        common_tokens(&self.tokens, tokens)
    }

    /// Reusable prefix of a prompt in the agent's own cache, which holds `cached` tokens. Tokens
    /// behind it must be dropped from the cache. `window` is the number of earlier tokens that the
    /// agent's penalties consider.
    pub fn keep_prefix(&mut self, prompt: &[TokenId], cached: u32, window: u32) -> u32 {
        let same = common_tokens(&self.tokens, prompt).min(cached);
        let keep = reusable_prefix(prompt, same, self.reached, window);
        self.evaluated = self.evaluated.min(keep);
        // All that stays is exact.
        if keep <= self.exact {
            self.exact = u32::MAX;
            self.is_loaded = false;
        }
        keep
    }

    /// The tokens between the common prefix with a prompt and a later part that continues it, of at
    /// least [`SHIFTED_MIN`] tokens: if they are removed, more of the prompt is in the cache, which
    /// holds `cached` tokens.
    pub fn gap_before(&self, prompt: &[TokenId], cached: u32) -> Option<Range<u32>> {
        let known = &self.tokens[..self.tokens.len().min(cached as usize)];
        let same = common_tokens(known, prompt) as usize;
        let next = prompt.get(same..same + SHIFTED_MIN)?;
        let rest = known.get(same + 1..)?;
        let gap = 1 + rest.windows(SHIFTED_MIN).position(|part| part == next)?;
        Some(same as u32..(same + gap) as u32)
    }

    /// The tokens of `gap` were removed from the cache, and the later ones shifted.
    pub fn close_gap(&mut self, gap: Range<u32>) {
        self.exact = self.exact.min(gap.start);
        self.is_loaded = false;
        self.evaluated = self.evaluated.saturating_sub(gap.end - gap.start).max(gap.start);
        self.tokens.drain(gap.start as usize..gap.end as usize);
    }

    /// Prefix of the known tokens that can be taken from the cache of the `source` sequence.
    pub fn prefix_of(&self, source: &Self, window: u32) -> u32 {
        let same = common_tokens(source.evaluated(), &self.tokens);
        reusable_prefix(&self.tokens, same, source.reached, window)
    }

    /// Whether the known tokens begin with the `tokens` of a whole sequence that has had `reached`
    /// tokens, and all of it can be used.
    pub fn begins_with(&self, tokens: &[TokenId], reached: u32, window: u32) -> bool {
        let length = tokens.len() as u32;
        self.tokens.starts_with(tokens)
            && reusable_prefix(&self.tokens, length, reached, window) == length
    }

    /// Maximum length of the sequence since it was empty.
    pub fn reached(&self) -> u32 {
        self.reached
    }

    /// The cache holds `tokens` tokens that another agent's sequence evaluated, which has `reached`
    /// this length.
    pub fn share(&mut self, tokens: u32, reached: u32) {
        (self.evaluated, self.reached) = (tokens, reached);
        self.exact = u32::MAX;
        self.is_loaded = false;
    }

    /// As [`share`](Self::share), of tokens of a file.
    pub fn load(&mut self, tokens: u32, reached: u32) {
        self.share(tokens, reached);
        (self.exact, self.is_loaded) = (0, true);
    }

    /// Called when the cache holds nothing of the sequence any more.
    pub fn forget_cache(&mut self) {
        (self.evaluated, self.reached) = (0, 0);
        self.exact = u32::MAX;
        self.is_loaded = false;
        self.forget_in_flight();
    }

    /// Discards results in flight: they belong to a reply that has ended, or to tokens that are
    /// recomputed.
    pub fn forget_in_flight(&mut self) {
        self.unread = 0;
        self.epoch.version = self.epoch.version.wrapping_add(1);
    }
}

/// Reusable prefix: the number of tokens of `prompt` that can be taken from a sequence that has its
/// first `same` tokens and has had `reached` tokens.
///
/// At least one token is recomputed, because its output is the first token of the reply.
/// Penalties count tokens by position modulo [`MAX_PENALTY_WINDOW`]: tokens whose entries were
/// overwritten by later tokens of the sequence are recomputed if the first draw counts them.
fn reusable_prefix(prompt: &[TokenId], same: u32, reached: u32, window: u32) -> u32 {
    let prompt_tokens = prompt.len() as u32;
    let keep = same.min(prompt_tokens - 1);
    let is_remembered = reached + window <= keep + MAX_PENALTY_WINDOW;
    if is_remembered { keep } else { keep.min(prompt_tokens.saturating_sub(window)) }
}

/// Length of the common prefix.
fn common_tokens(a: &[TokenId], b: &[TokenId]) -> u32 {
    a.iter().zip(b).take_while(|(a, b)| a == b).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_limit_the_reusable_prefix() {
        let prompt = vec![TokenId(1); 400];
        // With 591 as the last position, position 336 is still recorded.
        assert_eq!(reusable_prefix(&prompt, 400, 592 - 1, 64), 399);
        // Another token has replaced it: the last 64 tokens are recomputed.
        assert_eq!(reusable_prefix(&prompt, 400, 592, 64), 336);
        assert_eq!(reusable_prefix(&prompt, 200, 592, 64), 200);
        assert_eq!(reusable_prefix(&prompt[..40], 40, 592, 64), 0);
    }

    #[test]
    fn a_gap_lies_between_the_prefix_and_the_part_that_continues_it() {
        let tokens = |range: Range<u32>| range.map(TokenId).collect::<Vec<_>>();
        let mut sequence = SequenceState::new(AgentId(1));
        sequence.begin(&tokens(0..300), 0);
        let prompt = [tokens(0..50), tokens(120..400)].concat();
        assert_eq!(sequence.gap_before(&prompt, 300), Some(50..120));
        // Too little of it is in the cache, or nothing is missing.
        assert_eq!(sequence.gap_before(&prompt, 140), None);
        assert_eq!(sequence.gap_before(&tokens(0..400), 300), None);
        assert_eq!(sequence.gap_before(&prompt[..60], 300), None);
        sequence.completed(300);
        sequence.close_gap(50..120);
        assert_eq!((sequence.tokens(), sequence.evaluated().len()), (&prompt[..230], 50));
        assert_eq!(sequence.keep_prefix(&prompt, 230, 0), 230);
        assert_eq!(sequence.evaluated().len(), 50, "others share what is exact");
        assert_eq!(sequence.keep_prefix(&prompt[..40], 230, 0), 39);
        sequence.begin(&prompt, 0);
        sequence.completed(100);
        assert_eq!(sequence.evaluated().len(), 100);
    }

    #[test]
    fn loaded_tokens_are_not_shared_until_they_are_evaluated_again() {
        let tokens = |range: Range<u32>| range.map(TokenId).collect::<Vec<_>>();
        let mut sequence = SequenceState::new(AgentId(1));
        let prompt = tokens(0..300);
        sequence.begin(&prompt[..200], 0);
        sequence.load(200, 200);
        assert_eq!((sequence.evaluated().len(), sequence.copyable().len()), (0, 200));
        assert_eq!(sequence.keep_prefix(&prompt, 200, 0), 200);
        sequence.begin(&prompt, 0);
        sequence.completed(300);
        assert_eq!((sequence.evaluated().len(), sequence.copyable().len()), (0, 300));
        // Shifted keys are approximate, also for the agent itself.
        sequence.close_gap(50..120);
        assert_eq!((sequence.evaluated().len(), sequence.copyable().len()), (0, 0));
        sequence.load(200, 200);
        assert_eq!(sequence.keep_prefix(&tokens(7..20), 200, 0), 0);
        assert!(!sequence.is_loaded());
    }

    #[test]
    fn without_penalties_all_but_one_token_are_reusable() {
        let prompt = vec![TokenId(1); 400];
        assert_eq!(reusable_prefix(&prompt, 400, 1_000, 0), 399);
        assert_eq!(reusable_prefix(&prompt[..1], 1, 1_000, 0), 0);
    }
}
