use super::order::{Order, by_priority, by_wait};
use super::result::{AGED, DUE, Grant, PROMPTS, SPARE, Scratch};
use super::{
    AGED_CHUNK_TOKENS, Deferral, Deferred, Detail, Limits, NextWork, Plan, PlanRequest, Prefill,
    StepWork, TooManyRequests,
};
use crate::KvLedger;

/// Plans a step by the rules of the [module](super).
///
/// The result depends only on the arguments. It does not depend on the order of `requests`, except
/// that the first of several requests of one sequence counts. O(agents), plus O(log agents) per
/// visited agent.
///
/// # Errors
/// [`TooManyRequests`]; the plan is then empty.
///
/// # Examples
/// ```
/// use walla_plan::{CostModel, NextWork, KvCommands, KvLedger, LedgerOptions, Limits, LinearCost, Plan, PlanRequest, plan};
/// use walla_types::SeqId;
///
/// let mut ledger = KvLedger::new(LedgerOptions::default())?;
/// ledger.append(SeqId(0), 100, &mut KvCommands::with_capacity(1))?;
/// let requests = [
///     PlanRequest::new(SeqId(0), NextWork::Decoding),
///     PlanRequest::new(SeqId(1), NextWork::Prefill { tokens: 500 }),
/// ];
/// let cost = LinearCost { step_micros: 300.0, row_micros: 5.0, ..LinearCost::default() };
/// let limits = Limits { max_device_micros: 1_000, cost: Some(&cost), ..Limits::default() };
/// let mut frame = Plan::new(64);
/// plan(&requests, &ledger, &limits, &mut frame)?;
/// assert_eq!(frame.decode(), [SeqId(0)]);
/// assert_eq!(frame.prefill()[0].tokens, 64); // a chunk
/// assert!(cost.predict_micros(frame.step()) <= 1_000.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn plan(
    requests: &[PlanRequest],
    ledger: &KvLedger,
    limits: &Limits<'_>,
    plan: &mut Plan,
) -> Result<(), TooManyRequests> {
    plan.clear();
    if requests.len() > plan.max_sequences as usize {
        let max_sequences = plan.max_sequences;
        return Err(TooManyRequests { requests: requests.len(), max_sequences });
    }
    let mut planning = Planning::new(requests, ledger, limits, plan);
    planning.sort_requests();
    planning.serve_aged();
    planning.serve(DUE);
    planning.serve(PROMPTS);
    // Before spare work: a prompt in progress is worth more than a token ahead of time.
    planning.extend_prompts();
    planning.serve(SPARE);
    planning.write_down();
    Ok(())
}

impl Plan {
    fn clear(&mut self) {
        self.decode.clear();
        self.prefill.clear();
        self.deferred.clear();
        self.step = StepWork::default();
        let scratch = &mut self.scratch;
        scratch.grants.clear();
        scratch.number += 1;
        scratch.orders.iter_mut().for_each(Order::clear);
        scratch.reading.clear();
    }
}

/// A plan under construction.
pub(super) struct Planning<'a> {
    pub(super) requests: &'a [PlanRequest],
    pub(super) ledger: &'a KvLedger,
    pub(super) limits: &'a Limits<'a>,
    pub(super) plan: &'a mut Plan,
    pub(super) pages_left: u32,
    pub(super) prefill_left: u32,
}

impl<'a> Planning<'a> {
    fn new(
        requests: &'a [PlanRequest],
        ledger: &'a KvLedger,
        limits: &'a Limits<'a>,
        plan: &'a mut Plan,
    ) -> Self {
        plan.scratch.grants.resize(requests.len(), Grant::default());
        let (pages_left, prefill_left) = (ledger.free_pages(), limits.max_prefill_tokens);
        Self { requests, ledger, limits, plan, pages_left, prefill_left }
    }

    /// Adds every request with work to the orders in which it is visited.
    fn sort_requests(&mut self) {
        let sequences = self.plan.max_sequences.min(self.ledger.options().max_sequences);
        let Scratch { grants, request_of, number, orders, .. } = &mut self.plan.scratch;
        for (index, (request, grant)) in self.requests.iter().zip(grants).enumerate() {
            if request.seq.0 >= sequences {
                grant.deferral = Some(Deferral::UnknownSequence);
                continue;
            }
            // Entries of earlier plans have other numbers, so nothing is cleared.
            let seen = &mut request_of[request.seq.index()];
            if seen.0 == *number {
                grant.deferral = Some(Deferral::Duplicate);
                continue;
            }
            *seen = (*number, index as u32); // requests are at most `max_sequences`
            if !request.wants_work() {
                continue;
            }
            if request.waited_frames >= self.limits.max_wait_frames {
                orders[AGED].push(by_wait(request));
            }
            let order = match request.work {
                _ if request.detail == Detail::Background => SPARE,
                NextWork::Prefill { .. } => PROMPTS,
                NextWork::Decoding if request.lateness() >= 0.0 => DUE,
                NextWork::Decoding => SPARE,
            };
            orders[order].push(by_priority(request));
        }
    }

    fn serve_aged(&mut self) {
        // An eighth, so that agents that waited long do not silence speaking agents.
        let mut rows_left = (self.limits.max_rows / 8).max(1);
        let mut place = 0;
        while rows_left > 0
            && let Some(index) = self.next(AGED, place)
        {
            let forced = self.limits.forces && self.plan.is_empty();
            if !forced && self.closed().is_some() {
                break;
            }
            rows_left -= self.grant(index, AGED_CHUNK_TOKENS.min(rows_left), forced);
            place += 1;
        }
    }

    /// Serves the requests of an order until the step is closed.
    fn serve(&mut self, order: usize) {
        let mut place = 0;
        while self.closed().is_none()
            && (order != PROMPTS || self.prefill_left > 0)
            && let Some(index) = self.next(order, place)
        {
            self.grant(index, u32::MAX, false);
            place += 1;
        }
    }

    /// At the sequence limit, prompts that started as aged ones can still grow.
    fn extend_prompts(&mut self) {
        for place in 0..self.plan.scratch.reading.len() {
            self.try_prefill(self.plan.scratch.reading[place], u32::MAX, false);
        }
    }

    /// The request at a rank of an order.
    fn next(&mut self, order: usize, place: usize) -> Option<u32> {
        let seq = self.plan.scratch.orders[order].get(place)?;
        Some(self.plan.scratch.request_of[seq.index()].1)
    }

    fn write_down(&mut self) {
        // Prompts are visited until the prompt tokens are used up, other requests until the step is
        // closed.
        let full = self.closed().unwrap_or(Deferral::PrefillTokens);
        let Plan { prefill, deferred, scratch, .. } = &mut *self.plan;
        prefill.extend(scratch.reading.iter().filter_map(|&index| {
            let request = &self.requests[index as usize];
            let tokens = scratch.grants[index as usize].rows;
            let NextWork::Prefill { tokens: prompt_tokens } = request.work else { return None };
            Some(Prefill { seq: request.seq, tokens, prompt_tokens })
        }));
        for (request, grant) in self.requests.iter().zip(&scratch.grants) {
            let seq = request.seq;
            match grant.deferral {
                Some(reason) if grant.rows == 0 => deferred.push(Deferred { seq, reason }),
                None if grant.rows == 0 && request.wants_work() => {
                    deferred.push(Deferred { seq, reason: full });
                }
                _ => {}
            }
        }
    }
}
