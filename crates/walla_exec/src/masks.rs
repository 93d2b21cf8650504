//! The mask block: bit masks of allowed tokens, for outputs that have one.
//!
//! A mask stays in its place on the device until another mask takes the place, so a mask that an
//! agent keeps for a whole reply is copied once. New masks take the lowest places that they can
//! have, because a copy begins at the first place.

use std::sync::Arc;

use walla_device::step::mask_words;
use walla_device::{BufferId, Device, DeviceError, HostId};
use walla_types::TokenMask;

/// A mask of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepMask {
    pub mask: Arc<TokenMask>,
    /// Its index in the block.
    pub place: u32,
}

#[derive(Debug)]
pub(crate) struct Masks {
    /// `None`: no step has masks.
    pub block: Option<BufferId>,
    words: usize,
    /// Masks that the block holds, by place, once all submitted work has run.
    held: Vec<Option<Arc<TokenMask>>>,
    /// Reused: masks of the step being built.
    list: Vec<StepMask>,
    /// Reused: whether a place has a mask of the step.
    taken: Vec<bool>,
}

impl Masks {
    pub fn create(
        device: &mut dyn Device,
        max_masks: u32,
        vocab: u32,
    ) -> Result<Self, DeviceError> {
        let mut masks = Self {
            block: None,
            words: mask_words(vocab),
            held: vec![None; max_masks as usize],
            list: Vec::with_capacity(max_masks as usize),
            taken: Vec::with_capacity(max_masks as usize),
        };
        if max_masks > 0 {
            masks.block = Some(device.create_buffer("masks", masks.bytes())?);
        }
        Ok(masks)
    }

    /// Bytes of the whole block.
    pub fn bytes(&self) -> usize {
        self.held.len() * self.bytes_of_one()
    }

    fn bytes_of_one(&self) -> usize {
        self.words * size_of::<u32>()
    }

    /// Returns an empty list; the caller returns it with [`keep_list`](Self::keep_list).
    pub fn take_list(&mut self) -> Vec<StepMask> {
        std::mem::take(&mut self.list)
    }

    /// Gives each mask of a step its place. Held masks keep theirs. New ones take places of no use,
    /// then places of masks that later steps may use. More masks than places are refused later, by
    /// the executor.
    pub fn place(&mut self, list: &mut [StepMask]) {
        let Self { held, taken, .. } = self;
        taken.clear();
        taken.resize(held.len(), false);
        let place_of = |step: &StepMask, held: &[Option<Arc<TokenMask>>]| {
            let same = |mask: &Arc<TokenMask>| Arc::ptr_eq(mask, &step.mask);
            held.iter().position(|mask| mask.as_ref().is_some_and(same))
        };
        let mut new = 0;
        for at in 0..list.len() {
            match place_of(&list[at], held) {
                Some(place) => {
                    list[at].place = place as u32;
                    taken[place] = true;
                }
                None => {
                    list.swap(new, at);
                    new += 1;
                }
            }
        }
        // The block is the last owner of a mask that no agent has any more.
        let is_useless =
            |mask: &Option<Arc<TokenMask>>| mask.as_ref().is_none_or(|m| Arc::strong_count(m) == 1);
        let mut rest = list[..new].iter_mut();
        for wants_useless in [true, false] {
            let places = held.iter().zip(taken.iter_mut()).enumerate();
            let free = places.filter(|(_, (_, taken))| !**taken);
            let free = free.filter(|(_, (mask, _))| !wants_useless || is_useless(mask));
            // `zip` advances the places before the masks: without a place it takes no mask.
            for ((place, (_, taken)), step) in free.zip(&mut rest) {
                step.place = place as u32;
                *taken = true;
            }
        }
    }

    pub fn keep_list(&mut self, mut list: Vec<StepMask>) {
        list.clear();
        self.list = list;
    }

    /// Drops the record of held masks, because the content of the block is unknown after a failed
    /// step.
    pub fn clear_held(&mut self) {
        self.held.fill(None);
    }

    /// Records that the block holds the masks of a step. Returns the end of the places that change;
    /// 0 if none does.
    fn hold(&mut self, list: &[StepMask]) -> usize {
        let mut end = 0;
        for StepMask { mask, place } in list {
            let Some(held) = self.held.get_mut(*place as usize) else { continue };
            if held.as_ref().is_none_or(|held| !Arc::ptr_eq(held, mask)) {
                *held = Some(Arc::clone(mask));
                end = end.max(*place as usize + 1);
            }
        }
        end
    }

    /// Writes the masks of a step to pinned memory, up to the last one that the block does not hold
    /// yet. Returns the bytes to upload; `None` if the block holds all of them.
    pub fn write(
        &mut self,
        device: &mut dyn Device,
        list: &[StepMask],
        host: Option<HostId>,
    ) -> Result<Option<usize>, DeviceError> {
        let Some(host) = host else { return Ok(None) };
        let end = self.hold(list);
        if end == 0 {
            return Ok(None);
        }
        let bytes = end * self.bytes_of_one();
        let written = device.write_host(host, 0, bytes, &mut |bytes| {
            for (place, held) in bytes.chunks_exact_mut(self.bytes_of_one()).zip(&self.held) {
                let given = held.as_ref().map_or(&[][..], |mask| mask.words());
                let given: &[u8] = bytemuck::cast_slice(given);
                let known = given.len().min(place.len());
                place[..known].copy_from_slice(&given[..known]);
                place[known..].fill(0);
            }
        });
        // The contents of the host block are unknown now: all masks are written again.
        if written.is_err() {
            self.clear_held();
        }
        written.map(|()| Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use walla_types::TokenId;

    fn mask(token: u32) -> Arc<TokenMask> {
        Arc::new(TokenMask::allow(64, [TokenId(token)]).expect("a mask"))
    }

    fn masks(places: usize) -> Masks {
        let (list, taken) = (Vec::new(), Vec::new());
        Masks { block: None, words: 2, held: vec![None; places], list, taken }
    }

    /// Places and holds the masks of a step. Returns the end of the changed places.
    fn step(masks: &mut Masks, wanted: &[&Arc<TokenMask>]) -> usize {
        let step = |mask: &&Arc<TokenMask>| StepMask { mask: Arc::clone(mask), place: 0 };
        let mut list: Vec<_> = wanted.iter().map(step).collect();
        masks.place(&mut list);
        let end = masks.hold(&list);
        let mut places: Vec<_> = list.iter().map(|mask| mask.place).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), wanted.len(), "one place each: {list:?}");
        for StepMask { mask, place } in &list {
            let held = masks.held[*place as usize].as_ref().expect("held");
            assert!(Arc::ptr_eq(held, mask));
        }
        end
    }

    #[test]
    fn a_mask_that_changes_in_each_step_is_copied_alone() {
        let mut masks = masks(64);
        let stays: Vec<_> = (1..9).map(mask).collect();
        let with = |other: &Arc<TokenMask>| {
            std::iter::once(other).chain(&stays).cloned().collect::<Vec<_>>()
        };
        let first = mask(0);
        let all = with(&first);
        assert_eq!(step(&mut masks, &all.iter().collect::<Vec<_>>()), 9);
        drop((first, all));
        for token in 10..40 {
            let all = with(&mask(token));
            assert_eq!(step(&mut masks, &all.iter().collect::<Vec<_>>()), 1, "{token}");
        }
        assert_eq!(step(&mut masks, &stays.iter().collect::<Vec<_>>()), 0);
    }

    #[test]
    fn a_mask_is_evicted_only_if_no_place_is_useless() {
        let mut masks = masks(3);
        let [a, b, c, d] = [0, 1, 2, 3].map(mask);
        assert_eq!(step(&mut masks, &[&a]), 1);
        assert_eq!(step(&mut masks, &[&b]), 2);
        assert_eq!(step(&mut masks, &[&c, &b]), 3);
        assert_eq!(step(&mut masks, &[&a, &c]), 0);
        // All agents still have their masks: the first place of no mask of this step.
        assert_eq!(step(&mut masks, &[&d, &a]), 2);
        drop(c);
        assert_eq!(step(&mut masks, &[&b, &a]), 3);
        assert_eq!(step(&mut masks, &[&d, &a, &b]), 0);
    }

    #[test]
    fn as_many_masks_as_places_fit_in_any_order() {
        let all: Vec<_> = (0..64).map(mask).collect();
        let mut masks = masks(64);
        for turn in 0..64 {
            let rotated: Vec<_> = all[turn..].iter().chain(&all[..turn]).collect();
            assert_eq!(step(&mut masks, &rotated), if turn == 0 { 64 } else { 0 });
        }
        // One more than places: the executor refuses the step.
        let more = mask(63);
        let step = |mask: &Arc<TokenMask>| StepMask { mask: Arc::clone(mask), place: 0 };
        let mut list: Vec<_> = all.iter().chain([&more]).map(step).collect();
        masks.place(&mut list);
        assert_eq!(list.len(), 65);
    }
}
