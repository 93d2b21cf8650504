use walla_types::SeqId;

use super::order::by_expendability;
use super::planner::Planning;
use super::result::Scratch;
use super::{Deferral, Detail, PlanRequest};

/// Agents without pages, and sequences to give up for them, that one plan looks at: bounds the search.
pub const VICTIMS_MAX: usize = 64;

impl Planning<'_> {
    /// Lists sequences whose end would let those without pages go on, the most important of these first.
    ///
    /// Pages behind a fence come back by themselves, so they are counted first: whoever waits for a fence needs no victim.
    /// Victims are named in one order, so whoever is named to make room for others finds nobody left to name for itself.
    pub(super) fn suggest_victims(&mut self) {
        let mut coming_pages = self.pages_left + self.ledger.fenced_pages();
        let mut is_sorted = false;
        let mut asked = 0;
        for place in 0..VICTIMS_MAX {
            let Some(index) = self.next(|scratch| &mut scratch.without_pages, place) else { break };
            let request = self.requests[index as usize];
            let grant = self.plan.scratch.grants[index as usize];
            let Some(Deferral::Pages { wanted_pages }) = grant.deferral else { continue };
            if request.detail == Detail::Background {
                continue;
            }
            if coming_pages < wanted_pages {
                if !is_sorted {
                    self.sort_expendable();
                    is_sorted = true;
                }
                match self.give_up_for(&request, wanted_pages - coming_pages, asked) {
                    Some((pages, more_asked)) => {
                        coming_pages += pages;
                        asked = more_asked;
                    }
                    None => continue,
                }
            }
            coming_pages -= wanted_pages;
        }
    }

    /// Everyone who gets nothing in this frame could be given up.
    fn sort_expendable(&mut self) {
        let Scratch { grants, expendable, .. } = &mut self.plan.scratch;
        for (request, grant) in self.requests.iter().zip(grants) {
            let is_known =
                !matches!(grant.deferral, Some(Deferral::UnknownSequence | Deferral::Duplicate));
            if grant.is_empty() && is_known && !self.ledger.pages(request.seq).is_empty() {
                expendable.push(by_expendability(request));
            }
        }
    }

    /// Gives up the most expendable sequences, from place `asked` on, until they make room for `missing_pages`. Returns their
    /// pages and the place to go on from, or `None`, and nobody is given up, if that is not possible.
    fn give_up_for(
        &mut self,
        for_agent: &PlanRequest,
        missing_pages: u32,
        asked: usize,
    ) -> Option<(u32, usize)> {
        let known_victims = self.plan.victims.len();
        let (mut pages, mut place) = (0, asked);
        while pages < missing_pages {
            match self.exclusive_pages_of(place, for_agent) {
                Some((_, 0)) => {}
                Some((seq, exclusive)) => {
                    pages += exclusive;
                    self.plan.victims.push(seq);
                }
                None => {
                    self.plan.victims.truncate(known_victims);
                    return None;
                }
            }
            place += 1;
        }
        Some((pages, place))
    }

    /// The next most expendable sequence and what its end would give back, if it is worth less than the agent.
    fn exclusive_pages_of(
        &mut self,
        place: usize,
        for_agent: &PlanRequest,
    ) -> Option<(SeqId, u32)> {
        if place >= VICTIMS_MAX {
            return None;
        }
        let seq = self.plan.scratch.expendable.get(place)?;
        let victim = &self.requests[self.plan.scratch.request_of[seq.index()].1 as usize];
        let is_worth_less = victim.priority < for_agent.priority
            || (victim.priority == for_agent.priority && !victim.wants_work());
        is_worth_less.then(|| (seq, self.ledger.exclusive_pages(seq)))
    }
}
