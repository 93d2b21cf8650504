//! Copies of cache contents to and from host memory, in parts, between steps.
//!
//! A part is enqueued on the stream of the steps, so it sees all steps submitted before and none
//! submitted later. The host owns a buffer before a copy is enqueued and after its event has
//! completed; [`Executor::is_transferred`] observes that. Copies of one buffer follow each other.

use walla_device::{CacheImage, CachePart, Device, EventId, HostId};

use crate::error::ExecError;
use crate::executor::Executor;

/// Host buffers for copies: one is filled or read while the other is copied.
pub const TRANSFER_BUFFERS: usize = 2;

/// Host buffers, and the layout of their contents.
#[derive(Debug)]
pub(crate) struct Transfers {
    image: CacheImage,
    bytes: usize,
    buffers: [(HostId, EventId); TRANSFER_BUFFERS],
}

impl Transfers {
    /// Creates buffers of at least `bytes` bytes: of one page and of the largest state, if that is
    /// more.
    pub fn create(
        device: &mut dyn Device,
        image: CacheImage,
        bytes: usize,
    ) -> Result<Self, ExecError> {
        let largest = image.states.iter().map(|state| state.bytes).max().unwrap_or(0);
        let recent = 4 * walla_types::MAX_PENALTY_WINDOW as usize;
        let bytes = bytes.max(image.page_bytes()).max(largest).max(recent);
        let mut buffer = || {
            Ok::<_, ExecError>((
                device.create_host("copies of the cache", bytes)?,
                device.create_event()?,
            ))
        };
        let buffers = [buffer()?, buffer()?];
        Ok(Self { image, bytes, buffers })
    }
}

impl Executor {
    /// Layout of cache contents in host memory. `None` if the device or the options exclude
    /// copies.
    #[must_use]
    pub fn cache_image(&self) -> Option<&CacheImage> {
        self.transfers.as_ref().map(|transfers| &transfers.image)
    }

    /// Bytes of a buffer for copies.
    #[must_use]
    pub fn transfer_bytes(&self) -> usize {
        self.transfers.as_ref().map_or(0, |transfers| transfers.bytes)
    }

    fn buffer(&self, buffer: usize) -> Result<(HostId, EventId), ExecError> {
        let found = self.transfers.as_ref().and_then(|transfers| transfers.buffers.get(buffer));
        found.copied().ok_or_else(|| ExecError::Options("no buffer for copies".to_owned()))
    }

    /// Enqueues a copy of a part of the cache to a buffer.
    ///
    /// # Errors
    /// Any device error. After one that is no loss, the part was not copied.
    pub fn read_part(&mut self, buffer: usize, part: &CachePart<'_>) -> Result<(), ExecError> {
        let (host, event) = self.buffer(buffer)?;
        let copied = self.device.read_cache(self.compute, self.cache, part, (host, 0));
        // Behind a copy that failed half-way too: the event then says when the buffer is free.
        let recorded = self.device.record(self.compute, event);
        Ok(copied.and(recorded)?)
    }

    /// Fills the first `bytes` bytes of a buffer, and enqueues their copy to a part of the cache.
    ///
    /// # Errors
    /// Any device error. After one that is no loss, the part is undefined.
    pub fn write_part(
        &mut self,
        buffer: usize,
        part: &CachePart<'_>,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), ExecError> {
        let (host, event) = self.buffer(buffer)?;
        self.device.write_host(host, 0, bytes, fill)?;
        let copied = self.device.write_cache(self.compute, self.cache, part, (host, 0));
        let recorded = self.device.record(self.compute, event);
        Ok(copied.and(recorded)?)
    }

    /// Whether the latest copy of a buffer has completed.
    ///
    /// # Errors
    /// Any device error.
    pub fn is_transferred(&mut self, buffer: usize) -> Result<bool, ExecError> {
        let (_, event) = self.buffer(buffer)?;
        Ok(self.device.poll(event)?)
    }

    /// Passes the first `bytes` bytes of a buffer to `read`.
    ///
    /// # Errors
    /// Any device error.
    pub fn transferred(
        &mut self,
        buffer: usize,
        bytes: usize,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), ExecError> {
        let (host, _) = self.buffer(buffer)?;
        Ok(self.device.read_host(host, 0, bytes, read)?)
    }
}
