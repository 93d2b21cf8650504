//! Owns a device and everything on it that one model needs.

use std::ops::ControlFlow;
use std::sync::Arc;

use walla_device::step::{ResultView, StepLayout, StepViewMut};
use walla_device::{
    BufferId, CacheDesc, CacheId, Device, DeviceError, HostId, StreamId, StreamPriority, Watch,
};
use walla_model::{Gguf, ModelSpec};
use walla_plan::{KvCommand, KvLedger, UBatch};
use walla_trace::{Stage, enter};
use walla_types::TokenMask;

use crate::buckets::{self, PreparedBucket};
use crate::error::ExecError;
use crate::fill::{self, SamplingOf};
use crate::load::Weights;
use crate::masks::Masks;
use crate::options::ExecOptions;
use crate::program::{self, Buffers};
use crate::ring::{Completed, Ring, StepShape};

/// A model on a device, ready to run steps.
///
/// Steps are submitted in order and completed in order; up to [`ExecOptions::ring`] are in flight.
pub struct Executor {
    device: Box<dyn Device>,
    options: ExecOptions,
    layout: StepLayout,
    vocab: u32,
    is_recurrent: bool,
    compute: StreamId,
    copy: StreamId,
    cache: CacheId,
    step: BufferId,
    results: BufferId,
    /// `results` as the host sees it, where the device writes there.
    mapped: Option<HostId>,
    logits: BufferId,
    masks: Masks,
    buckets: Vec<PreparedBucket>,
    ring: Ring,
    /// The step submitted last failed half-way.
    is_torn: bool,
    /// Events have been recorded behind it and have not completed.
    is_recorded: bool,
    /// Reused: outputs of a step whose logits are copied.
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
    /// `progress` hears the share of weights done, from 0 to 1, and may stop the load.
    ///
    /// # Errors
    /// [`ExecError::Options`] for capacities that make no sense, [`ExecError::Stopped`], or what
    /// file and device say.
    pub fn load(
        mut device: Box<dyn Device>,
        file: &Gguf,
        model: &ModelSpec,
        options: ExecOptions,
        progress: &mut dyn FnMut(f32) -> ControlFlow<()>,
    ) -> Result<Self, ExecError> {
        options.check()?;
        let layout = options.layout();
        let weights = Weights::load(&mut *device, file, model, progress)?;
        let cache = device.create_cache(&CacheDesc {
            layers: program::cache_layers(model, &weights),
            pages: options.pages,
            page_tokens: options.page_tokens,
            sequences_max: options.sequences_max,
            kv_type: options.kv_type,
        })?;
        let logits_bytes = options.outputs_max as usize * model.vocab * size_of::<f32>();
        let results_bytes = layout.result_bytes() * options.ring as usize;
        let mapped = match options.mapped_results {
            true => device.create_mapped("results", results_bytes)?,
            false => None,
        };
        let masks = Masks::create(&mut *device, options.masks_max, model.vocab as u32)?;
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
        let logits_row_bytes = model.vocab * size_of::<f32>();
        let logits_bytes = options.logits_rows_max as usize * logits_row_bytes;
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
            is_torn: false,
            is_recorded: false,
            logits_wanted: Vec::with_capacity(options.logits_rows_max as usize),
        })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Gives up a device that hangs: it is leaked with all its memory, and every later call fails
    /// with [`DeviceError::Lost`]. Never blocks.
    pub fn abandon(&mut self, reason: &str) {
        walla_device::abandon(&mut self.device, reason);
    }

    /// The capacities.
    #[must_use]
    pub fn options(&self) -> &ExecOptions {
        &self.options
    }

    /// Numbers in a row of logits.
    #[must_use]
    pub fn vocab(&self) -> u32 {
        self.vocab
    }

    /// Whether some layer keeps state that cannot be rewound.
    #[must_use]
    pub fn is_recurrent(&self) -> bool {
        self.is_recurrent
    }

    /// The layout of step and result blocks.
    #[must_use]
    pub fn layout(&self) -> &StepLayout {
        &self.layout
    }

    /// The prepared buckets, smallest first; of equal ones the narrower promise first.
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

    /// Refuses where [`has_room`](Self::has_room) says no.
    pub(crate) fn check_room(&self) -> Result<(), ExecError> {
        self.ring.next().map(|_| ())
    }

    /// Whether copies of a step that failed half-way may still run. It is not [in
    /// flight](Self::in_flight), but no other step is submitted before [`poll`](Self::poll) or
    /// [`submit_ubatch`](Self::submit_ubatch) has seen their end: call one of them again.
    #[must_use]
    pub fn is_reclaiming(&self) -> bool {
        self.is_torn || self.is_recorded
    }

    /// Enqueues a piece of upkeep of the cache, after all steps submitted so far and before all
    /// later ones.
    ///
    /// # Errors
    /// What the device says; unless it is lost, the command has not been taken and may be given
    /// again.
    pub fn maintain(&mut self, command: KvCommand) -> Result<(), ExecError> {
        let command = fill::cache_command(command);
        Ok(self.device.maintain(self.compute, self.cache, &[command])?)
    }

    /// Keeps memory behind the first `pages` pages of the cache alone, where the device can. Waits
    /// for steps in flight.
    ///
    /// # Errors
    /// What the device says: [`DeviceError::OutOfMemory`] if memory for more pages is not there.
    pub fn resize_cache(&mut self, pages: u32) -> Result<(), ExecError> {
        Ok(self.device.resize_cache(self.cache, pages)?)
    }

    /// Enqueues a micro-batch as one step and returns its number: its rows, the page tables of its
    /// sequences, and how each sequence draws its tokens. Outputs of the step are the micro-batch's
    /// [`output_rows`](UBatch::output_rows) in order.
    ///
    /// Enqueues one copy to the device (and one more if some output has a mask that the device does
    /// not hold), one launch, one copy back where the device does not write results to the host
    /// itself, and one for each row of logits asked for; never waits.
    ///
    /// # Errors
    /// [`ExecError::RingFull`], [`ExecError::NoRows`], [`ExecError::StepTooLarge`],
    /// [`ExecError::NothingAllowed`], or what the device says: [`DeviceError::HostInFlight`] while
    /// copies of an earlier step that failed half-way still run
    /// ([`is_reclaiming`](Self::is_reclaiming)); try again later. [`ExecError::nothing_happened`]
    /// says which of them leave no trace of the step.
    pub fn submit_ubatch(
        &mut self,
        ubatch: &UBatch,
        ledger: &KvLedger,
        sampling: &SamplingOf<'_>,
    ) -> Result<u64, ExecError> {
        let mut masks = self.masks.take_list();
        let step = self.submit_with(ubatch, ledger, sampling, &mut masks);
        self.masks.keep_list(masks);
        step
    }

    fn submit_with(
        &mut self,
        ubatch: &UBatch,
        ledger: &KvLedger,
        sampling: &SamplingOf<'_>,
        masks: &mut Vec<Arc<TokenMask>>,
    ) -> Result<u64, ExecError> {
        let (biases, candidates) = fill::extras(ubatch, sampling, self.vocab, masks)?;
        self.masks.join_held(masks);
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
            fill::fill(view, ubatch, ledger, pages_per_sequence, sampling, masks);
        });
        self.logits_wanted = logits;
        step
    }

    /// Enqueues one step. `fill` writes rows, outputs, biases and page tables; the header is
    /// written here.
    fn submit(
        &mut self,
        shape: &StepShape<'_>,
        fill: &mut dyn FnMut(&mut StepViewMut<'_>),
    ) -> Result<u64, ExecError> {
        self.check(shape)?;
        let (number, index) = self.ring.next()?;
        let slot = self.ring.slot(index);
        let (layout, upload_bytes) = (self.layout, self.layout.bytes_with(shape.sequences));
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
        // A context that is too long is the device's to refuse.
        let context = context.min(self.options.context_tokens);
        let graph =
            buckets::choose(&self.buckets, shape, context).ok_or(ExecError::StepTooLarge {
                what: "rows",
                wanted: shape.rows,
                max: self.options.rows_max,
            })?;
        let upload_masks = self.masks.write(&mut *self.device, shape.masks, slot.masks)?;
        self.is_torn = true;
        // The logits buffer is one for all steps: the next pass must not overwrite rows that are
        // still being copied.
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
                let watch = Watch { event: slot.copied, results, ring_slot: index, step: number };
                self.device.launch_watched(self.compute, graph, &watch)?;
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

    /// After a step that failed half-way, its slot may still be read or written by copies that no
    /// event covers: records events behind them. Answers whether the slot of the next step is the
    /// host's.
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
            self.masks.forget();
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
            ("rows", shape.rows, self.options.rows_max),
            ("outputs", shape.outputs, self.layout.outputs_max),
            ("sequences", shape.sequences, self.layout.sequences_max),
            ("biases", shape.biases, self.layout.biases_max),
            ("masks", shape.masks.len() as u32, self.options.masks_max),
            ("rows of logits", shape.logits.len() as u32, self.options.logits_rows_max),
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
        let row_bytes = self.vocab as usize * size_of::<f32>();
        for (row, &output) in shape.logits.iter().enumerate() {
            let from = (self.logits, output as usize * row_bytes);
            self.device.download(self.copy, from, (slot.logits, row * row_bytes), row_bytes)?;
        }
        Ok(())
    }

    /// The oldest step in flight if it has completed. Its results stay readable until
    /// [`release`](Self::release).
    ///
    /// # Errors
    /// What the device says.
    pub fn poll(&mut self) -> Result<Option<Completed>, ExecError> {
        if let Some((completed, copied)) = self.ring.oldest()
            && self.device.poll(copied)?
        {
            return Ok(Some(completed));
        }
        self.reclaim()?;
        Ok(None)
    }

    /// Lets `read` see the results of a completed step.
    ///
    /// # Errors
    /// What the device says, or [`ExecError::ForeignResults`] if they are another step's: then
    /// `read` has not seen them.
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

    /// Lets `read` see row `row` of the logits that a completed step brought (in the order asked
    /// for).
    ///
    /// # Errors
    /// [`ExecError::StepTooLarge`] if the step brought fewer rows, or what the device says.
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
        let row_bytes = self.vocab as usize * size_of::<f32>();
        let host = self.ring.slot(completed.slot).logits;
        Ok(self.device.read_host(host, row as usize * row_bytes, row_bytes, &mut |bytes| {
            read(bytemuck::cast_slice(bytes));
        })?)
    }

    /// Gives the slot of a completed step back to the ring.
    pub fn release(&mut self, completed: Completed) {
        self.ring.release(completed);
    }

    /// Blocks until all submitted steps have completed: for tests and benchmarks, never in play.
    ///
    /// # Errors
    /// What the device says.
    pub fn synchronise(&mut self) -> Result<(), ExecError> {
        Ok(self.device.synchronise()?)
    }
}
