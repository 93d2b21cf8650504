//! The executor: owns a device and everything on it that one model needs.

use std::ops::ControlFlow;

use walla_device::step::{ResultView, StepLayout, StepViewMut};
use walla_device::{
    BufferId, CacheCommand, CacheDesc, CacheId, CompletionFlag, Device, DeviceError, HostId,
    StreamId, StreamPriority,
};
use walla_model::{Gguf, ModelSpec};
use walla_plan::{KvLedger, UBatch};
use walla_trace::{Stage, enter};

use crate::buckets::{self, PreparedBucket};
use crate::error::ExecError;
use crate::fill::{self, DrawOf};
use crate::load::Weights;
use crate::masks::{Masks, StepMask};
use crate::options::ExecOptions;
use crate::program::{self, Buffers};
use crate::ring::{Completed, Ring, StepShape};
use crate::transfer::Transfers;

/// A model on a device, ready to run steps.
///
/// Steps are submitted in order and completed in order; up to [`ExecOptions::ring`] are in flight.
pub struct Executor {
    pub(crate) device: Box<dyn Device>,
    options: ExecOptions,
    layout: StepLayout,
    vocab: u32,
    /// Numbers of a row of logits or hidden states.
    row_numbers: u32,
    is_recurrent: bool,
    pub(crate) compute: StreamId,
    copy: StreamId,
    pub(crate) cache: CacheId,
    step: BufferId,
    results: BufferId,
    /// Host side of `results`, if the device writes results to mapped memory.
    mapped: Option<HostId>,
    logits: BufferId,
    masks: Masks,
    buckets: Vec<PreparedBucket>,
    ring: Ring,
    pub(crate) transfers: Option<Transfers>,
    /// The step submitted last failed after some of its work was enqueued.
    is_torn: bool,
    /// Events were recorded behind the torn step and have not completed.
    is_recorded: bool,
    /// Reused: outputs of the current step whose logits are copied to the host.
    logits_wanted: Vec<u32>,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = &self.device.info().name;
        f.debug_struct("Executor")
            .field("device", name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Executor {
    /// Loads `model` from `file` onto `device`.
    ///
    /// `progress` receives the fraction of weights loaded, from 0 to 1, and may stop the load.
    ///
    /// # Errors
    /// [`ExecError::Options`] for invalid capacities, [`ExecError::Stopped`], or an error of the
    /// file or the device.
    pub fn load(
        mut device: Box<dyn Device>,
        file: &Gguf,
        model: &ModelSpec,
        mut options: ExecOptions,
        progress: &mut dyn FnMut(f32) -> ControlFlow<()>,
    ) -> Result<Self, ExecError> {
        options.check()?;
        if !model.is_recurrent() {
            options.max_snapshots = 0;
        }
        let layout = options.layout();
        let weights = Weights::load(&mut *device, file, model, options.target, progress)?;
        let cache = device.create_cache(&CacheDesc {
            layers: program::cache_layers(model, &weights),
            pages: options.pages,
            page_tokens: options.page_tokens,
            max_sequences: options.cache_sequences(),
            kv_type: options.kv_type,
        })?;
        let image = device.cache_image(cache).filter(|_| options.transfer_bytes > 0);
        let transfer_bytes = options.transfer_bytes as usize;
        let transfers = image
            .map(|image| Transfers::create(&mut *device, image, transfer_bytes))
            .transpose()?;
        let row_numbers = options.target.row_numbers(model);
        let logits_bytes = options.max_outputs as usize * row_numbers * size_of::<f32>();
        let results_bytes = layout.result_bytes() * options.ring as usize;
        let mapped = match options.mapped_results {
            true => device.create_mapped("results", results_bytes)?,
            false => None,
        };
        let masks = Masks::create(&mut *device, options.max_masks, model.vocab as u32)?;
        let buffers = Buffers {
            cache,
            masks: masks.block,
            step: device.create_buffer("step block", layout.bytes())?,
            results: match mapped {
                Some((buffer, _)) => buffer,
                None => device.create_buffer("results", results_bytes)?,
            },
            logits: device.create_buffer("logits", logits_bytes)?,
        };
        let compute = device.create_stream(StreamPriority::Low)?;
        let copy = device.create_stream(StreamPriority::High)?;
        let logits_row_bytes = row_numbers * size_of::<f32>();
        let logits_bytes = options.max_logits_rows as usize * logits_row_bytes;
        let mapped = mapped.map(|(_, host)| host);
        let mask_bytes = masks.bytes();
        let ring =
            Ring::create(&mut *device, options.ring, &layout, logits_bytes, mask_bytes, mapped)?;
        let buckets = buckets::prepare(&mut *device, model, &weights, &options, layout, buffers)?;
        Ok(Self {
            device,
            options,
            layout,
            vocab: model.vocab as u32,
            row_numbers: row_numbers as u32,
            is_recurrent: model.is_recurrent(),
            compute,
            copy,
            cache,
            step: buffers.step,
            results: buffers.results,
            mapped,
            logits: buffers.logits,
            masks,
            buckets,
            ring,
            transfers,
            is_torn: false,
            is_recorded: false,
            logits_wanted: Vec::with_capacity(options.max_logits_rows as usize),
        })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Gives up a hanging device: it is leaked with all its memory, and every later call fails with
    /// [`DeviceError::Lost`]. Never blocks.
    pub fn abandon(&mut self, reason: &str) {
        walla_device::abandon(&mut self.device, reason);
    }

    /// The capacities.
    #[must_use]
    pub fn options(&self) -> &ExecOptions {
        &self.options
    }

    /// Size of the vocabulary.
    #[must_use]
    pub fn vocab(&self) -> u32 {
        self.vocab
    }

    /// Whether some layer keeps state that cannot be rolled back.
    #[must_use]
    pub fn is_recurrent(&self) -> bool {
        self.is_recurrent
    }

    /// The layout of step and result blocks.
    #[must_use]
    pub fn layout(&self) -> &StepLayout {
        &self.layout
    }

    /// The prepared buckets, smallest first; of equal size, the more restricted first.
    #[must_use]
    pub fn buckets(&self) -> &[PreparedBucket] {
        &self.buckets
    }

    /// Steps in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.ring.in_flight()
    }

    /// Whether another step can be submitted now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.ring.has_room()
    }

    /// Returns an error unless [`has_room`](Self::has_room).
    pub(crate) fn check_room(&self) -> Result<(), ExecError> {
        self.ring.next().map(|_| ())
    }

    /// Whether copies of a step that failed half-way may still run. That step is not [in
    /// flight](Self::in_flight), but no other step is submitted until [`poll`](Self::poll) or
    /// [`submit_ubatch`](Self::submit_ubatch) has observed the end of the copies: call one of them
    /// again.
    #[must_use]
    pub fn is_reclaiming(&self) -> bool {
        self.is_torn || self.is_recorded
    }

    /// Enqueues a cache operation after all steps submitted so far and before all later steps.
    ///
    /// # Errors
    /// Any device error. Unless the device is lost, the command was not enqueued and may be
    /// submitted again.
    pub fn run_cache_ops(&mut self, command: CacheCommand) -> Result<(), ExecError> {
        Ok(self.device.run_cache_ops(self.compute, self.cache, &[command])?)
    }

    /// Keeps physical memory only behind the first `pages` pages of the cache, if the device can
    /// unmap memory. Waits for steps in flight.
    ///
    /// # Errors
    /// Any device error; [`DeviceError::OutOfMemory`] if memory for more pages is not available.
    pub fn resize_cache(&mut self, pages: u32) -> Result<(), ExecError> {
        Ok(self.device.resize_cache(self.cache, pages)?)
    }

    /// Enqueues a micro-batch as one step and returns its number. The step block holds its rows,
    /// the page tables of its sequences and the sampling parameters of each output. Outputs of the
    /// step are the micro-batch's [`output_rows`](UBatch::output_rows) in order.
    ///
    /// Enqueues one copy to the device, one more if some output has a mask that is not on the
    /// device, and one launch. Enqueues one copy back if results are not in mapped memory, and one
    /// per requested row of logits. Never waits.
    ///
    /// # Errors
    /// [`ExecError::RingFull`], [`ExecError::NoRows`], [`ExecError::StepTooLarge`],
    /// [`ExecError::NothingAllowed`], or a device error. [`DeviceError::HostInFlight`]: copies of
    /// an earlier step that failed half-way still run ([`is_reclaiming`](Self::is_reclaiming)); try
    /// again later. [`ExecError::nothing_happened`] is true for errors after which the step left no
    /// trace.
    pub fn submit_ubatch(
        &mut self,
        ubatch: &UBatch,
        ledger: &KvLedger,
        draw: &DrawOf<'_>,
    ) -> Result<u64, ExecError> {
        let mut masks = self.masks.take_list();
        let step = self.submit_with(ubatch, ledger, draw, &mut masks);
        self.masks.keep_list(masks);
        step
    }

    fn submit_with(
        &mut self,
        ubatch: &UBatch,
        ledger: &KvLedger,
        draw: &DrawOf<'_>,
        masks: &mut Vec<StepMask>,
    ) -> Result<u64, ExecError> {
        let (biases, candidates) = fill::extras(ubatch, draw, self.vocab, masks)?;
        self.masks.place(masks);
        let mut logits = std::mem::take(&mut self.logits_wanted);
        logits.clear();
        let first_output = ubatch.output_rows().start;
        let wanted = ubatch.rows().iter().filter(|row| row.logits_row.is_some());
        logits.extend(wanted.filter_map(|row| Some(row.output_row? - first_output)));
        let shape = StepShape {
            rows: ubatch.len(),
            outputs: ubatch.output_rows().len() as u32,
            sequences: ubatch.runs().len() as u32,
            biases,
            candidates,
            logits: &logits,
            masks,
        };
        let pages_per_sequence = self.layout.pages_per_sequence as usize;
        let step = self.submit(&shape, &mut |view| {
            fill::fill(view, ubatch, ledger, pages_per_sequence, draw, masks);
        });
        self.logits_wanted = logits;
        step
    }

    /// Enqueues one step. `fill` writes rows, outputs, biases and page tables; this function writes
    /// the header.
    fn submit(
        &mut self,
        shape: &StepShape<'_>,
        fill: &mut dyn FnMut(&mut StepViewMut<'_>),
    ) -> Result<u64, ExecError> {
        self.check(shape)?;
        let (number, index) = self.ring.next()?;
        let slot = self.ring.slot(index);
        let (layout, upload_bytes) = (self.layout, self.layout.bytes_with(shape.sequences));
        // A step that failed half-way may still read the step block.
        if !self.reclaim()? {
            return Err(DeviceError::HostInFlight { host: slot.step.0 }.into());
        }
        let stage = enter(Stage::Fill);
        let mut context = 0;
        self.device.write_host(slot.step, 0, layout.bytes(), &mut |bytes| {
            let Some(mut view) = StepViewMut::new(bytes, &layout) else {
                unreachable!("the block was made for this layout");
            };
            fill(&mut view);
            *view.header = shape.header(number, index);
            let rows = view.rows.iter().take(shape.rows as usize);
            context = rows.map(|row| row.position.saturating_add(1)).max().unwrap_or(0);
        })?;
        drop(stage);
        // The device refuses a context that is too long.
        let context = context.min(self.options.context_tokens);
        let graph =
            buckets::choose(&self.buckets, shape, context).ok_or(ExecError::StepTooLarge {
                what: "rows",
                wanted: shape.rows,
                max: self.options.max_rows,
            })?;
        let upload_masks = self.masks.write(&mut *self.device, shape.masks, slot.masks)?;
        // From here on, a failure leaves work on the device: `reclaim` waits for its end.
        self.is_torn = true;
        // All steps share one logits buffer: the next step must not overwrite rows that are still
        // being copied.
        if let Some(copied) = self.ring.latest_logits_copy() {
            self.device.wait(self.compute, copied)?;
        }
        let stage = enter(Stage::Upload);
        self.device.upload(self.compute, slot.step, self.step, upload_bytes)?;
        if let (Some(bytes), Some(host), Some(block)) = (upload_masks, slot.masks, self.masks.block)
        {
            self.device.upload(self.compute, host, block, bytes)?;
        }
        drop(stage);
        let stage = enter(Stage::Launch);
        let launched_nanos = if walla_trace::is_listening() { walla_trace::now_nanos() } else { 0 };
        match self.mapped {
            Some(results) => {
                let watch =
                    CompletionFlag { event: slot.copied, results, ring_slot: index, step: number };
                self.device.launch_with_flag(self.compute, graph, &watch)?;
            }
            None => self.device.launch(self.compute, graph)?,
        }
        drop(stage);
        if self.mapped.is_none() || !shape.logits.is_empty() {
            let _stage = enter(Stage::CopyBack);
            self.device.record(self.compute, slot.computed)?;
            self.device.wait(self.copy, slot.computed)?;
            self.copy_back(shape, index)?;
            self.device.record(self.copy, slot.copied)?;
        }
        self.ring.launched(number, shape, launched_nanos);
        self.is_torn = false;
        Ok(number)
    }

    /// After a step that failed half-way, copies that no event covers may still read or write its
    /// slot. Records events behind them. Returns whether the host may write the slot of the next
    /// step.
    fn reclaim(&mut self) -> Result<bool, ExecError> {
        if !self.is_reclaiming() {
            return Ok(true);
        }
        let (_, index) = self.ring.next()?;
        let slot = self.ring.slot(index);
        if self.is_torn {
            self.device.record(self.compute, slot.computed)?;
            self.device.wait(self.copy, slot.computed)?;
            self.device.record(self.copy, slot.copied)?;
            self.is_torn = false;
            // It is unknown which masks have arrived.
            self.masks.clear_held();
            self.is_recorded = true;
        }
        self.is_recorded = !self.device.poll(slot.copied)?;
        Ok(!self.is_recorded)
    }

    fn check(&self, shape: &StepShape<'_>) -> Result<(), ExecError> {
        if shape.rows == 0 {
            return Err(ExecError::NoRows);
        }
        let bounds = [
            ("rows", shape.rows, self.options.max_rows),
            ("outputs", shape.outputs, self.layout.max_outputs),
            ("sequences", shape.sequences, self.layout.max_sequences),
            ("biases", shape.biases, self.layout.max_biases),
            ("masks", shape.masks.len() as u32, self.options.max_masks),
            ("rows of logits", shape.logits.len() as u32, self.options.max_logits_rows),
        ];
        match bounds.into_iter().find(|(_, wanted, max)| wanted > max) {
            Some((what, wanted, max)) => Err(ExecError::StepTooLarge { what, wanted, max }),
            None => Ok(()),
        }
    }

    fn copy_back(&mut self, shape: &StepShape<'_>, index: u32) -> Result<(), ExecError> {
        let slot = self.ring.slot(index);
        if self.mapped.is_none() {
            let bytes = if shape.candidates {
                self.layout.result_bytes()
            } else {
                self.layout.result_bytes_without_candidates()
            };
            let from = index as usize * self.layout.result_bytes();
            self.device.download(self.copy, (self.results, from), slot.results, bytes)?;
        }
        let row_bytes = self.row_numbers as usize * size_of::<f32>();
        for (row, &output) in shape.logits.iter().enumerate() {
            let from = (self.logits, output as usize * row_bytes);
            self.device.download(self.copy, from, (slot.logits, row * row_bytes), row_bytes)?;
        }
        Ok(())
    }

    /// Returns the oldest step in flight if it has completed. Its results stay readable until
    /// [`release`](Self::release).
    ///
    /// # Errors
    /// Any device error.
    pub fn poll(&mut self) -> Result<Option<Completed>, ExecError> {
        if let Some((completed, copied)) = self.ring.oldest()
            && self.device.poll(copied)?
        {
            return Ok(Some(completed));
        }
        self.reclaim()?;
        Ok(None)
    }

    /// Blocks until the oldest step in flight has completed: for tools, tests and benchmarks.
    ///
    /// # Errors
    /// Any device error.
    pub fn wait_for_oldest(&mut self) -> Result<(), ExecError> {
        let oldest = self.ring.oldest();
        Ok(oldest.map_or(Ok(()), |(_, copied)| self.device.synchronize_event(copied))?)
    }

    /// Passes the results of a completed step to `read`.
    ///
    /// # Errors
    /// Any device error, or [`ExecError::ForeignResults`] if the block holds another step's
    /// results; `read` is not called then.
    pub fn read_results(
        &mut self,
        completed: Completed,
        read: &mut dyn FnMut(&ResultView<'_>),
    ) -> Result<(), ExecError> {
        let layout = self.layout;
        let (host, offset) = self.ring.slot(completed.slot).results;
        let step = completed.step;
        let mut found = step;
        self.device.read_host(host, offset, layout.result_bytes(), &mut |bytes| {
            let Some(view) = ResultView::new(bytes, &layout) else {
                unreachable!("the block was made for this layout");
            };
            found = view.header.step;
            if found == step {
                read(&view);
            }
        })?;
        if found == step { Ok(()) } else { Err(ExecError::ForeignResults { step, found }) }
    }

    /// Passes row `row` of a completed step's logits, or hidden states, to `read`. Rows are in the
    /// order of the outputs that requested them.
    ///
    /// # Errors
    /// [`ExecError::StepTooLarge`] if the step has fewer rows of logits, or a device error.
    pub fn read_logits(
        &mut self,
        completed: Completed,
        row: u32,
        read: &mut dyn FnMut(&[f32]),
    ) -> Result<(), ExecError> {
        if row >= completed.logits_rows {
            let max = completed.logits_rows;
            return Err(ExecError::StepTooLarge { what: "rows of logits", wanted: row + 1, max });
        }
        let row_bytes = self.row_numbers as usize * size_of::<f32>();
        let host = self.ring.slot(completed.slot).logits;
        Ok(self.device.read_host(host, row as usize * row_bytes, row_bytes, &mut |bytes| {
            read(bytemuck::cast_slice(bytes));
        })?)
    }

    /// Returns the slot of a completed step to the ring.
    pub fn release(&mut self, completed: Completed) {
        self.ring.release(completed);
    }

    /// Blocks until all submitted steps have completed. For tests and benchmarks only.
    ///
    /// # Errors
    /// Any device error.
    pub fn synchronize(&mut self) -> Result<(), ExecError> {
        Ok(self.device.synchronize()?)
    }
}
