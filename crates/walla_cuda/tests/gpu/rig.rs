//! A model on a device with everything that a step needs, run synchronously.

use walla_device::step::{
    BiasRow, Candidate, OutputRow, ResultRow, ResultView, StepLayout, StepRow, StepViewMut,
    mask_words,
};
use walla_device::{
    BufferId, CacheCommand, CacheDesc, CacheId, Device, DeviceError, GraphId, HostId, KvType,
    Phase, Program, StreamId, StreamPriority,
};
use walla_types::MAX_CANDIDATES;

use crate::model::{Model, Shape};

pub const PAGE_TOKENS: u32 = 16;
pub const LAYOUT: StepLayout = StepLayout {
    max_rows: 64,
    max_outputs: 64,
    max_biases: 64,
    max_sequences: 8,
    pages_per_sequence: 40,
};
/// Maximum masks per step.
const MAX_MASKS: usize = 8;

/// Sizes of steps.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    layout: StepLayout,
    /// Physical pages per sequence; the page table repeats them beyond this number.
    pages: u32,
    /// A step uses the smallest bucket that it fits.
    buckets: &'static [u32],
}

/// Up to 64 rows, for most tests.
const SHORT: Steps =
    Steps { layout: LAYOUT, pages: LAYOUT.pages_per_sequence, buckets: &[1, 2, 3, 8, 16, 32, 64] };

/// The same with a cache of many pages; each sequence uses the last of its pages.
pub const MANY_PAGES: Steps = Steps { pages: 512, ..SHORT };

/// The maximum number of rows of a program.
pub const LONG: Steps = Steps {
    layout: StepLayout { max_rows: 512, max_outputs: 128, ..LAYOUT },
    pages: LAYOUT.pages_per_sequence,
    buckets: &[64, 128, 512],
};

/// One row, and more rows than a block of a product takes, with and without a full last block.
pub const WIDE: Steps = Steps { buckets: &[1, 72, 192, 512], ..LONG };

/// Contexts of `context` tokens, whose page tables repeat the same 640 tokens.
pub const fn far(context: u32) -> Steps {
    Steps {
        layout: StepLayout { max_rows: 160, pages_per_sequence: context / PAGE_TOKENS, ..LAYOUT },
        pages: LAYOUT.pages_per_sequence,
        buckets: &[1, 4, 16, 160],
    }
}

/// Tokens of one sequence in a step: the position of the first, the tokens, and whether every token
/// is an output or only the last.
#[derive(Clone, Debug)]
pub struct Piece {
    pub sequence: u32,
    pub position: u32,
    pub tokens: Vec<i32>,
    pub all_outputs: bool,
    pub sampling: OutputRow,
    pub biases: Vec<BiasRow>,
    /// Words of the mask of allowed tokens.
    pub mask: Option<Vec<u32>>,
}

impl Piece {
    pub fn new(sequence: u32, position: u32, tokens: &[i32]) -> Self {
        Self {
            sequence,
            position,
            tokens: tokens.to_vec(),
            all_outputs: false,
            sampling: OutputRow {
                flags: OutputRow::SAMPLE,
                top_p: 1.0,
                repetition_penalty: 1.0,
                ..OutputRow::default()
            },
            biases: vec![],
            mask: None,
        }
    }
}

/// Results of a step, by output.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub logits: Vec<Vec<f32>>,
    pub rows: Vec<ResultRow>,
    pub candidates: Vec<Vec<Candidate>>,
}

pub struct Rig {
    pub device: Box<dyn Device>,
    pub cache: CacheId,
    pub stream: StreamId,
    vocab: u32,
    sizes: Steps,
    pub step: BufferId,
    pub results: BufferId,
    logits: BufferId,
    masks: BufferId,
    /// Host side of the results, if programs write them to mapped memory.
    pub mapped: Option<HostId>,
    step_host: HostId,
    results_host: HostId,
    logits_host: HostId,
    masks_host: HostId,
    /// For each bucket: the program for any step, and the program for one row per sequence.
    pub graphs: Vec<[GraphId; 2]>,
    /// The program of the largest bucket, for any step.
    pub program: Program,
    /// Whether steps with one row per sequence run the programs made for them.
    pub keeps_promise: bool,
    steps: u64,
}

impl Rig {
    pub fn new(device: Box<dyn Device>, shape: &Shape, kv_type: KvType, seed: u64) -> Self {
        Self::with_results(device, shape, kv_type, seed, false)
    }

    /// `is_mapped`: results are written to mapped memory, if the device supports it.
    pub fn with_results(
        device: Box<dyn Device>,
        shape: &Shape,
        kv_type: KvType,
        seed: u64,
        is_mapped: bool,
    ) -> Self {
        Self::with_steps(device, shape, kv_type, (seed, is_mapped), SHORT)
    }

    /// The same for other step sizes.
    pub fn with_steps(
        device: Box<dyn Device>,
        shape: &Shape,
        kv_type: KvType,
        options: (u64, bool),
        sizes: Steps,
    ) -> Self {
        Self::try_with_steps(device, shape, kv_type, options, sizes).unwrap()
    }

    /// The same, or the device's refusal of the programs.
    pub fn try_with_steps(
        mut device: Box<dyn Device>,
        shape: &Shape,
        kv_type: KvType,
        (seed, is_mapped): (u64, bool),
        sizes: Steps,
    ) -> Result<Self, DeviceError> {
        let Steps { layout, pages, buckets } = sizes;
        let d = &mut *device;
        let model = Model::load(d, shape, seed);
        let cache = CacheDesc {
            layers: model.layers.clone(),
            pages: 8 * pages + 1,
            page_tokens: PAGE_TOKENS,
            max_sequences: 8,
            kv_type,
        };
        let cache = d.create_cache(&cache).unwrap();
        let logits_bytes = 4 * layout.max_outputs as usize * model.vocab as usize;
        let step = d.create_buffer("step", layout.bytes()).unwrap();
        let results_bytes = 2 * layout.result_bytes();
        let mapped =
            is_mapped.then(|| d.create_mapped("results", results_bytes).unwrap()).flatten();
        let results = mapped
            .map_or_else(|| d.create_buffer("results", results_bytes).unwrap(), |both| both.0);
        let masks_bytes = 4 * MAX_MASKS * mask_words(model.vocab);
        let masks = d.create_buffer("masks", masks_bytes).unwrap();
        let logits = d.create_buffer("logits", logits_bytes).unwrap();
        let program = |rows: u32, pure_decode: bool| Program {
            name: format!("bucket {rows}"),
            phase: Phase::Decode,
            pure_decode,
            max_rows: rows,
            max_outputs: rows.min(layout.max_outputs),
            max_context: layout.pages_per_sequence * PAGE_TOKENS,
            vocab: model.vocab,
            slots: model.slots.clone(),
            cache,
            step,
            layout,
            results,
            logits,
            masks: Some(masks),
            ops: model.ops.clone(),
        };
        let programs = buckets.iter().flat_map(|&rows| [program(rows, false), program(rows, true)]);
        let prepared = d.prepare(programs.collect())?;
        Ok(Self {
            program: program(layout.max_rows, false),
            cache,
            stream: d.create_stream(StreamPriority::Low).unwrap(),
            vocab: model.vocab,
            sizes,
            step,
            results,
            logits,
            masks,
            mapped: mapped.map(|both| both.1),
            masks_host: d.create_host("masks", masks_bytes).unwrap(),
            step_host: d.create_host("step", layout.bytes()).unwrap(),
            results_host: d.create_host("results", layout.result_bytes()).unwrap(),
            logits_host: d.create_host("logits", logits_bytes).unwrap(),
            graphs: prepared.chunks(2).map(|p| [p[0].graph, p[1].graph]).collect(),
            keeps_promise: true,
            steps: 0,
            device,
        })
    }

    pub fn run_cache_ops(&mut self, commands: &[CacheCommand]) {
        self.device.run_cache_ops(self.stream, self.cache, commands).unwrap();
    }

    /// Runs one step; `bucket_at_least` forces a larger bucket.
    pub fn step(&mut self, pieces: &[Piece], bucket_at_least: u32) -> Outcome {
        let Steps { layout, buckets, .. } = self.sizes;
        let rows: u32 = pieces.iter().map(|p| p.tokens.len() as u32).sum();
        let outputs = self.upload(pieces);
        let wanted = rows.max(bucket_at_least);
        let bucket = buckets.iter().position(|b| *b >= wanted).unwrap();
        let slot = (self.steps % 2) as usize;
        let d = &mut *self.device;
        let one_each = self.keeps_promise && pieces.iter().all(|p| p.tokens.len() == 1);
        d.launch(self.stream, self.graphs[bucket][usize::from(one_each)]).unwrap();
        let from = (self.results, slot * layout.result_bytes());
        d.download(self.stream, from, (self.results_host, 0), layout.result_bytes()).unwrap();
        let bytes = 4 * outputs * self.vocab as usize;
        d.download(self.stream, (self.logits, 0), (self.logits_host, 0), bytes).unwrap();
        d.synchronize().unwrap();
        let mut outcome = Outcome::default();
        d.read_host(self.results_host, 0, layout.result_bytes(), &mut |bytes| {
            let view = ResultView::new(bytes, &layout).unwrap();
            assert_eq!(view.header.step, self.steps);
            assert_eq!(view.header.outputs as usize, outputs);
            outcome.rows = view.rows[..outputs].to_vec();
            let all = view.candidates.chunks_exact(MAX_CANDIDATES as usize);
            let asked = all.zip(view.rows).take(outputs);
            outcome.candidates =
                asked.map(|(all, row)| all[..row.candidates as usize].to_vec()).collect();
        })
        .unwrap();
        d.read_host(self.logits_host, 0, bytes, &mut |bytes| {
            let numbers: Vec<f32> = bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            outcome.logits =
                numbers.chunks_exact(self.vocab as usize).map(<[f32]>::to_vec).collect();
        })
        .unwrap();
        self.steps += 1;
        outcome
    }

    /// Uploads the masks of all pieces with a mask, in order; returns their number.
    fn upload_masks(&mut self, pieces: &[Piece]) -> u32 {
        let masks: Vec<_> = pieces.iter().filter_map(|piece| piece.mask.as_ref()).collect();
        let words: Vec<u32> = masks.iter().flat_map(|mask| mask.iter().copied()).collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if !bytes.is_empty() {
            let d = &mut *self.device;
            d.write_host(self.masks_host, 0, bytes.len(), &mut |to| to.copy_from_slice(&bytes))
                .unwrap();
            d.upload(self.stream, self.masks_host, self.masks, bytes.len()).unwrap();
        }
        masks.len() as u32
    }

    fn upload(&mut self, pieces: &[Piece]) -> usize {
        let Steps { layout, pages: its_pages, .. } = self.sizes;
        let (mut r, mut o, mut b) = (0, 0, 0);
        let masks = self.upload_masks(pieces);
        let steps = self.steps;
        self.device
            .write_host(self.step_host, 0, layout.bytes(), &mut |bytes| {
                let view = StepViewMut::new(bytes, &layout).unwrap();
                for (t, piece) in pieces.iter().enumerate() {
                    // Every sequence has consecutive pages after the reserved page, in reverse
                    // order, so that a kernel cannot rely on the order of pages.
                    let pages = layout.pages_per_sequence;
                    for (i, page) in
                        view.tables[t * pages as usize..][..pages as usize].iter_mut().enumerate()
                    {
                        let i = i as u32 % its_pages;
                        *page = 1 + piece.sequence * its_pages + (its_pages - 1 - i);
                    }
                    let first_bias = b;
                    for bias in &piece.biases {
                        view.biases[b] = *bias;
                        b += 1;
                    }
                    let mask =
                        pieces[..t].iter().filter(|piece| piece.mask.is_some()).count() as u32;
                    for (i, token) in piece.tokens.iter().enumerate() {
                        let last = i + 1 == piece.tokens.len();
                        let position = piece.position + i as u32;
                        let is_output = last || piece.all_outputs;
                        view.rows[r] = StepRow {
                            token: *token,
                            position,
                            sequence: piece.sequence,
                            table: t as u32,
                            previous: if i == 0 { StepRow::NONE } else { r as i32 - 1 },
                            output: if is_output { o as i32 } else { StepRow::NONE },
                            flags: if last { StepRow::LAST_OF_SEQUENCE } else { 0 },
                            reserved: 0,
                        };
                        if is_output {
                            view.outputs[o] = OutputRow {
                                row: r as u32,
                                sequence: piece.sequence,
                                position,
                                bias_first: first_bias as u32,
                                bias_count: piece.biases.len() as u32,
                                mask: if piece.mask.is_some() { mask + 1 } else { 0 },
                                ..piece.sampling
                            };
                            o += 1;
                        }
                        r += 1;
                    }
                }
                view.header.step = steps;
                view.header.rows = r as u32;
                view.header.outputs = o as u32;
                view.header.sequences = pieces.len() as u32;
                view.header.biases = b as u32;
                view.header.masks = masks;
                view.header.ring_slot = (steps % 2) as u32;
            })
            .unwrap();
        let bytes = layout.bytes_with(pieces.len() as u32);
        self.device.upload(self.stream, self.step_host, self.step, bytes).unwrap();
        o
    }
}
