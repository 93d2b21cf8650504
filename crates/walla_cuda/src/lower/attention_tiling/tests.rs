use walla_device::{
    BufferId, CacheDesc, CacheId, GpuFacts, HeadShape, KvType, Phase, Program, step::StepLayout,
};

use super::{
    BlockShape, CHUNK, CHUNKS_FEW, CLUSTER_RING, COLUMNS, Cluster, Form, Heads, MAX_ROWS, SPAN,
    TILE, TILES, cluster_helpers, tilings,
};
use crate::kernel_source::KernelSource;
use crate::lower::attention::partials_bytes;
use crate::lower::deferred_splits::MAX_DEFERRED_DIM;
use crate::lower::order::MAX_SPLITS;

/// Head shape of Llama 3.1 8B.
const SHAPE: HeadShape = HeadShape { heads: 32, kv_heads: 8, head_dim: 128 };

fn h200() -> GpuFacts {
    GpuFacts {
        compute_capability: (9, 0),
        multiprocessors: 132,
        shared_bytes_per_block_optin: 232_448,
        ..GpuFacts::default()
    }
}

fn cache(tokens: u32, kv_type: KvType) -> CacheDesc {
    CacheDesc { layers: vec![], pages: tokens / 32, page_tokens: 32, max_sequences: 64, kv_type }
}

fn program(max_rows: u32, max_context: u32) -> Program {
    let layout = StepLayout {
        max_rows,
        max_outputs: max_rows,
        max_biases: 0,
        max_sequences: 64,
        pages_per_sequence: max_context / 32,
    };
    Program {
        name: String::new(),
        phase: Phase::Decode,
        pure_decode: true,
        max_rows,
        max_outputs: max_rows,
        max_context,
        vocab: 1,
        slots: vec![],
        cache: CacheId(0),
        step: BufferId(0),
        layout,
        results: BufferId(0),
        logits: BufferId(0),
        masks: None,
        ops: vec![],
    }
}

/// The KV scheduler of the kernels.
struct Scheduler(KernelSource);

impl Scheduler {
    fn read() -> Self {
        Self(KernelSource::read(&["attention/attention.cuh", "attention/attention_scheduler.cuh"]))
    }

    /// Chunks per KV split of a row, and number of splits (`KvScheduler::cut`).
    fn cut(&self, chunks: u32, split_chunks: u32, warps: u32) -> (u32, u32) {
        let cut = self.0.call("cut", &[chunks, split_chunks, warps]);
        (cut[0], cut[1])
    }

    /// The same for units processed as prompts (`KvScheduler::cut_prompt`).
    fn cut_prompt(&self, chunks: u32, split_chunks: u32, warps: u32) -> (u32, u32) {
        let cut = self.0.call("cut_prompt", &[chunks, split_chunks, warps]);
        (cut[0], cut[1])
    }

    /// Partial results that a row stores (`KvScheduler::slots_of`).
    fn slots(&self, chunks: u32, (each, splits): (u32, u32)) -> u32 {
        self.0.call("slots_of", &[chunks, each, splits])[0]
    }
}

/// The smallest `split_chunks` that distributes the work over the grid and needs no more than
/// `max_slots` slots (`KvScheduler::make`).
fn split_chunks(
    warps: u32,
    work: u32,
    grid: u32,
    max_slots: u32,
    slots: impl Fn(u32) -> u32,
) -> u32 {
    let wanted = warps.max(work.div_ceil(grid));
    (0..).map(|doubled| wanted << doubled).find(|its| slots(*its) <= max_slots).unwrap()
}

/// Number of KV splits of rows with these contexts.
fn splits(form: &Form, program: &Program, contexts: &[u32]) -> u32 {
    let (scheduler, warps) = (Scheduler::read(), form.decode.warps);
    let chunks = || contexts.iter().map(|tokens| tokens.div_ceil(CHUNK));
    let cuts = |split_chunks| {
        chunks().map(|n| (n, scheduler.cut(n, split_chunks, warps))).collect::<Vec<_>>()
    };
    let work = chunks().sum::<u32>() * form.groups;
    let grid = form.decode(program).grid[0];
    let split_chunks = split_chunks(warps, work, grid, form.max_slots(program), |split_chunks| {
        cuts(split_chunks).iter().map(|(n, cut)| scheduler.slots(*n, *cut)).sum()
    });
    cuts(split_chunks).iter().map(|(_, (_, splits))| splits).sum::<u32>() * form.groups
}

/// Number of KV splits of a prompt's rows after `chunks` chunks, in units of `rows` rows.
fn splits_of_prompt(form: &Form, program: &Program, rows: u32, chunks: u32) -> u32 {
    let (scheduler, warps) = (Scheduler::read(), form.mixed.warps);
    let units = program.max_rows / rows;
    let parts = (rows * form.columns_of_row).div_ceil(COLUMNS);
    let work = units * chunks * warps * form.groups;
    let grid = form.mixed(program).grid[0];
    let split_chunks = split_chunks(warps, work, grid, form.max_slots(program), |split_chunks| {
        units * parts * scheduler.slots(chunks, scheduler.cut_prompt(chunks, split_chunks, warps))
    });
    units * scheduler.cut_prompt(chunks, split_chunks, warps).1 * form.groups
}

#[test]
fn kv_splits_are_whole_spans_of_similar_size() {
    let scheduler = Scheduler::read();
    for warps in [2, 4] {
        for split_chunks in (warps..40).chain((40..600).step_by(7)) {
            for chunks in (1..300).chain([1_000, 2_049]) {
                let (each, splits) = scheduler.cut(chunks, split_chunks, warps);
                let its = format!("{chunks} by {split_chunks}: {splits} of {each}");
                assert!(splits >= 1 && (splits - 1) * each < chunks, "{its}");
                assert!(splits == 1 || each == warps || each.is_multiple_of(SPAN), "{its}");
                let last = chunks - (splits - 1) * each;
                assert!(splits == 1 || last < each + SPAN.max(each), "{its}");
                // Spans if there are many, else chunks.
                assert!(
                    scheduler.slots(chunks, (each, splits))
                        <= chunks.div_ceil(SPAN).max(CHUNKS_FEW),
                    "{its}"
                );
            }
        }
    }
}

#[test]
fn long_contexts_are_split_over_the_chip() {
    for (rows, tokens, max_context) in [
        (4, 32_768, 32_768),
        (3, 65_536, 65_536),
        (4, 32_768, 131_072),
        (16, 8_192, 8_192),
        (7, 10_000, 32_768),
        (1, 131_072, 131_072),
    ] {
        let program = program(rows, max_context);
        let cache = cache(rows * max_context, KvType::F16);
        let form = Form::of(&h200(), &cache, &program, SHAPE).unwrap();
        let blocks = form.decode(&program).grid[0];
        let made = splits(&form, &program, &vec![tokens; rows as usize]);
        assert!(2 * made >= blocks, "{rows} rows of {tokens}: {made} of {blocks} blocks");
    }
    // One long row among short ones.
    let program = program(8, 65_536);
    let cache = cache(131_072, KvType::F16);
    let form = Form::of(&h200(), &cache, &program, SHAPE).unwrap();
    let contexts = [65_000, 300, 300, 300, 300, 300, 300, 300];
    assert!(splits(&form, &program, &contexts) >= 132);
}

#[test]
fn prompts_with_long_contexts_are_split_over_the_chip() {
    // A prompt unit has 16 rows of Llama 3.2 1B (64 columns), or 8 rows of Llama 3.1 8B (32
    // columns).
    let llama_1b = HeadShape { head_dim: 64, ..SHAPE };
    for (shape, rows) in [(llama_1b, 16), (SHAPE, 8)] {
        for context in [8_192, 16_384, 65_536] {
            let program = Program { pure_decode: false, ..program(128, context) };
            let cache = cache(131_072, KvType::F16);
            let form = Form::of(&h200(), &cache, &program, shape).unwrap();
            let splits =
                |tokens: u32| splits_of_prompt(&form, &program, rows, tokens.div_ceil(CHUNK));
            let its = format!("{shape:?}, {context}");
            assert_eq!(splits(8_192), 256, "{its}");
            assert_eq!(splits(512), 128 / rows * 8, "{its}");
            if context > 16_384 {
                assert_eq!(splits(16_384), 256, "{its}");
                assert!(splits(32_768) >= 128, "{its}");
                // Not enough capacity for partial results.
                assert_eq!(splits(65_536), 128 / rows * 8, "{its}");
            }
        }
    }
}

#[test]
fn workspaces_have_the_size_that_the_kernels_need() {
    // 131,072 tokens and 128 rows. As many rows as blocks can share (11, in two KV splits each)
    // store at most 258 spans each, with sums, a base and a mass for eight columns of eight
    // groups. The plain kernels need 2 GiB for all rows and heads.
    let bytes = |gpu: &GpuFacts, kv_type| {
        let (cache, program) = (cache(131_072, kv_type), program(128, 131_072));
        match Form::of(gpu, &cache, &program, SHAPE) {
            Some(form) => form.partials_bytes(&program),
            None => partials_bytes(&program, SHAPE, None),
        }
    };
    let slots = 11 * 258 + 128;
    assert_eq!(bytes(&h200(), KvType::F16), slots * 8 * 8 * 130 * 4);
    assert_eq!(bytes(&h200(), KvType::Q8), slots * 8 * 8 * 130 * 4);
    let plain = 4 * 128 * 32 * 1_024 * 130;
    assert_eq!(bytes(&h200(), KvType::F32), plain);
    let old = GpuFacts { compute_capability: (7, 5), ..h200() };
    assert_eq!(bytes(&old, KvType::F16), plain);
}

#[test]
fn head_counts_that_do_not_divide_have_no_tiling() {
    let shape = HeadShape { kv_heads: 0, ..SHAPE };
    let form = Form::of(&h200(), &cache(1_024, KvType::F16), &program(1, 1_024), shape);
    assert!(form.is_none());
}

#[test]
fn clusters_are_chosen_by_rows_contexts_and_chip() {
    let name = |gpu: &GpuFacts, kv_type, rows, max_context| {
        let program = program(rows, max_context);
        let form = Form::of(gpu, &cache(4_096, kv_type), &program, SHAPE).unwrap();
        form.decode_in_clusters(&program, None).map(|chosen| chosen.name)
    };
    let named = |name: &str| Some(format!("attention_cluster_{name}"));
    let f16 = |rows, max_context| name(&h200(), KvType::F16, rows, max_context);
    assert_eq!(f16(2, 160), named("f16_128_4x2"));
    assert_eq!(f16(2, 1_024), named("f16_128_8x1"));
    assert_eq!(f16(8, 512), named("f16_128_2x2"));
    assert_eq!(f16(8, 1_024), None);
    assert_eq!(f16(12, 160), None);
    assert_eq!(name(&h200(), KvType::Q8, 8, 512), named("q8_128_2x2"));
    // The largest blocks do not fit, or not all blocks fit at once.
    let small = GpuFacts { shared_bytes_per_block_optin: 99 << 10, ..h200() };
    assert_eq!(name(&small, KvType::F16, 2, 160), named("f16_128_8x1"));
    assert_eq!(name(&small, KvType::F16, 8, 160), None);
    let few = GpuFacts { multiprocessors: 66, ..h200() };
    assert_eq!(name(&few, KvType::F16, 4, 160), named("f16_128_2x2"));
    assert_eq!(name(&few, KvType::F16, 8, 160), None);
}

/// The headers and kernels of attention on tensor cores.
fn kernels() -> KernelSource {
    KernelSource::read(&[
        "common/walla.cuh",
        "attention/kv_tiles.cuh",
        "attention/attention.cuh",
        "attention/attention_heads.cuh",
        "attention/attention_scheduler.cuh",
        "attention/attention_decode.cuh",
        "attention/attention_mixed.cu",
        "attention/attention_cluster.cu",
    ])
}

#[test]
fn constants_match_the_kernels() {
    let kernels = kernels();
    for (name, host) in [
        ("TILE", TILE),
        ("TILES", TILES),
        ("CHUNK", CHUNK),
        ("SPAN", SPAN),
        ("CHUNKS_FEW", CHUNKS_FEW),
        ("COLUMNS", COLUMNS),
        ("ROWS_MAX", MAX_ROWS),
        ("CLUSTER_RING", CLUSTER_RING),
        ("DEFERRED_SPLITS_MAX", MAX_SPLITS),
        ("DEFERRED_DIM_MAX", MAX_DEFERRED_DIM),
    ] {
        assert_eq!(kernels.constant(name), host, "{name}");
    }
}

#[test]
fn shared_memory_matches_the_kernels() {
    // The kernels assert that these functions equal `sizeof(DecodeAttention<…>::Shared)` and
    // `sizeof(Cluster<…>::Shared)`.
    let kernels = kernels();
    let lists = 4 * 4 * (MAX_ROWS + 1);
    for (dim, is_q8) in [64, 128, 256].into_iter().flat_map(|dim| [(dim, false), (dim, true)]) {
        let heads = Heads { dim, is_q8 };
        let q8 = u32::from(is_q8);
        assert_eq!(kernels.call("cluster_helpers", &[dim])[0], cluster_helpers(dim));
        for tiling in tilings(heads).iter().flatten() {
            let laid = kernels.call("decode_shared_bytes", &[tiling.warps, tiling.ring, dim, q8]);
            assert_eq!(tiling.shared_bytes(heads) - lists, laid[0], "{heads:?}, {tiling:?}");
        }
        for (ranks, teams) in [(8, 1), (8, 2), (4, 2), (2, 2)] {
            let laid = kernels.call("cluster_shared_bytes", &[ranks, teams, dim, q8]);
            let cluster = Cluster::new(ranks, teams, 1);
            assert_eq!(cluster.shared_bytes(heads), laid[0], "{heads:?}, {cluster:?}");
        }
    }
    // Limit for heads of 256 on a GPU with 99 KB per block.
    for (ring, is_q8) in [(4, false), (8, true)] {
        let heads = Heads { dim: 256, is_q8 };
        assert!(BlockShape::new(2, ring, 1).shared_bytes(heads) <= 99 << 10);
    }
}

#[test]
fn every_tiling_has_its_kernels() {
    let text = |path: &str| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/attention/");
        std::fs::read_to_string(format!("{folder}{path}")).unwrap()
    };
    let (decode, mixed) = (text("attention_decode.cu"), text("attention_mixed.cu"));
    let cluster = text("attention_cluster.cu");
    for (dim, is_q8) in [64, 128, 256].into_iter().flat_map(|dim| [(dim, false), (dim, true)]) {
        let heads = Heads { dim, is_q8 };
        let name = heads.name();
        for [of_decode, of_mixed] in tilings(heads) {
            for (kind, text, BlockShape { warps, ring, blocks }) in
                [("decode", &decode, of_decode), ("mixed", &mixed, of_mixed)]
            {
                let kernel = format!("(attention_{kind}_{name}_{warps}x{ring}, ");
                let line = text.lines().find(|line| line.contains(&kernel));
                let line = line.unwrap_or_else(|| panic!("{kernel}"));
                assert!(line.ends_with(&format!(", {blocks})")), "{line}");
            }
        }
        for most in 1..=256 {
            for cells in [128, 512, 1_024, 2_048] {
                for Cluster { ranks, teams, blocks } in Cluster::of(heads, most, cells) {
                    let kernel = format!("(attention_cluster_{name}_{ranks}x{teams}, ");
                    let line = cluster.lines().find(|line| line.contains(&kernel));
                    let line = line.unwrap_or_else(|| panic!("{kernel}"));
                    assert!(line.ends_with(&format!(", {blocks})")), "{line}");
                }
            }
        }
    }
}
