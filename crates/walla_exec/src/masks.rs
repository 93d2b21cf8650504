//! The mask block: bit masks of allowed tokens, for outputs that have one.
//!
//! Masks stay on the device until others replace them, so an agent that keeps its mask for a whole
//! reply has it copied once.

use std::sync::Arc;

use walla_device::step::mask_words;
use walla_device::{BufferId, Device, DeviceError, HostId};
use walla_types::TokenMask;

#[derive(Debug)]
pub(crate) struct Masks {
    /// `None`: no step has masks.
    pub block: Option<BufferId>,
    masks_max: u32,
    words: usize,
    /// Masks that the block holds, from index 0, once all submitted work has run.
    held: Vec<Arc<TokenMask>>,
    /// Reused: masks of the step being built.
    list: Vec<Arc<TokenMask>>,
}

impl Masks {
    pub fn create(
        device: &mut dyn Device,
        masks_max: u32,
        vocab: u32,
    ) -> Result<Self, DeviceError> {
        let mut masks = Self {
            block: None,
            masks_max,
            words: mask_words(vocab),
            held: Vec::with_capacity(masks_max as usize),
            list: Vec::with_capacity(masks_max as usize),
        };
        if masks_max > 0 {
            masks.block = Some(device.create_buffer("masks", masks.bytes())?);
        }
        Ok(masks)
    }

    /// Bytes of the whole block.
    pub fn bytes(&self) -> usize {
        self.masks_max as usize * self.words * size_of::<u32>()
    }

    /// Returns an empty list; the caller returns it with [`keep_list`](Self::keep_list).
    pub fn take_list(&mut self) -> Vec<Arc<TokenMask>> {
        std::mem::take(&mut self.list)
    }

    /// Puts the held masks in front of the masks that a step needs, if the block can hold all of
    /// them. The held masks then keep their indices.
    pub fn join_held(&self, list: &mut Vec<Arc<TokenMask>>) {
        let is_new = |mask: &&Arc<TokenMask>| !self.held.iter().any(|h| Arc::ptr_eq(h, mask));
        let new = list.iter().filter(is_new).count();
        if list.is_empty() || self.held.len() + new > self.masks_max as usize {
            return;
        }
        list.retain(|mask| is_new(&mask));
        list.extend(self.held.iter().cloned());
        list.rotate_right(self.held.len());
    }

    pub fn keep_list(&mut self, mut list: Vec<Arc<TokenMask>>) {
        list.clear();
        self.list = list;
    }

    /// Drops the record of held masks, because the content of the block is unknown after a failed
    /// step.
    pub fn clear_held(&mut self) {
        self.held.clear();
    }

    /// Writes the masks of a step to pinned memory, unless the block holds them already. Returns
    /// the bytes to upload.
    pub fn write(
        &mut self,
        device: &mut dyn Device,
        wanted: &[Arc<TokenMask>],
        host: Option<HostId>,
    ) -> Result<Option<usize>, DeviceError> {
        let mut pairs = self.held.iter().zip(wanted);
        let is_held = wanted.len() <= self.held.len() && pairs.all(|(a, b)| Arc::ptr_eq(a, b));
        let Some(host) = host.filter(|_| !is_held) else { return Ok(None) };
        let bytes = wanted.len() * self.words * size_of::<u32>();
        device.write_host(host, 0, bytes, &mut |bytes| {
            for (place, mask) in bytes.chunks_exact_mut(self.words * size_of::<u32>()).zip(wanted) {
                let given: &[u8] = bytemuck::cast_slice(mask.words());
                let known = given.len().min(place.len());
                place[..known].copy_from_slice(&given[..known]);
                place[known..].fill(0);
            }
        })?;
        self.held.clear();
        self.held.extend(wanted.iter().cloned());
        Ok(Some(bytes))
    }
}
