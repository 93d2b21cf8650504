//! Encoders: every variant and tensor type against the scalar kernels; results do not depend on the
//! other texts or the threads; impossible programs and texts are refused.

use crate::support::{Random, matrix_bytes};
use walla_cpu::encoder::{CpuEncoder, EncoderLayer, EncoderProgram, LayerNorm};
use walla_cpu::{CpuOptions, Variant};
use walla_device::{DeviceError, Linear, MatrixDesc, MatrixId, MatrixUse, VectorId};
use walla_types::TensorType;

const VOCAB: usize = 40;
const CONTEXT: usize = 70;
const MAX_ROWS: u32 = 160;

/// Sizes of an encoder.
#[derive(Clone, Copy, Debug)]
struct Shape {
    width: usize,
    hidden: usize,
    heads: u32,
}

/// Whole blocks of every type.
const WIDE: Shape = Shape { width: 256, hidden: 512, heads: 8 };
/// Heads that are no multiple of a register, and partial panels.
const ODD: Shape = Shape { width: 36, hidden: 50, heads: 4 };

struct Builder {
    encoder: CpuEncoder,
    random: Random,
}

impl Builder {
    fn matrix(&mut self, ty: TensorType, rows: usize, cols: usize, gather: bool) -> MatrixId {
        let scale = if gather { 1.0 } else { 1.0 / (cols as f32).sqrt() };
        let bytes = matrix_bytes(&mut self.random, ty, rows * cols, scale);
        let usage = MatrixUse { gather, multiply: !gather };
        let (rows, cols) = (rows as u32, cols as u32);
        let desc = MatrixDesc { name: "matrix", rows, cols, ty, usage };
        self.encoder.load_matrix(&desc, &bytes.as_slice()).unwrap()
    }

    fn vector(&mut self, len: usize, offset: f32) -> VectorId {
        let values = self.random.vector(len, 0.2, offset);
        self.encoder.load_vector("vector", &values).unwrap()
    }

    fn linear(&mut self, ty: TensorType, rows: usize, cols: usize, has_bias: bool) -> Linear {
        let matrix = self.matrix(ty, rows, cols, false);
        Linear { matrix, bias: has_bias.then(|| self.vector(rows, 0.0)) }
    }

    fn norm(&mut self, width: usize) -> LayerNorm {
        LayerNorm { weight: self.vector(width, 1.0), bias: self.vector(width, 0.0), eps: 1e-5 }
    }

    fn program(&mut self, ty: TensorType, shape: Shape) -> EncoderProgram {
        let Shape { width, hidden, heads } = shape;
        let (tokens, positions) =
            (self.matrix(ty, VOCAB, width, true), self.matrix(ty, CONTEXT, width, true));
        let types = Some(self.matrix(TensorType::F32, 2, width, true));
        let norm = self.norm(width);
        let layer = |builder: &mut Self, has_bias| EncoderLayer {
            attention: [(); 3].map(|()| builder.linear(ty, width, width, has_bias)),
            output: builder.linear(ty, width, width, true),
            attention_norm: builder.norm(width),
            up: builder.linear(ty, hidden, width, has_bias),
            down: builder.linear(ty, width, hidden, true),
            output_norm: builder.norm(width),
        };
        let layers = vec![layer(self, true), layer(self, false)];
        EncoderProgram { tokens, types, positions, norm, heads, layers, max_rows: MAX_ROWS }
    }
}

fn builder(variant: Variant, threads: u32) -> Builder {
    let options = CpuOptions {
        variant: Some(variant),
        threads: Some(threads),
        thread_cost_nanos: Some(0),
        ..CpuOptions::default()
    };
    Builder { encoder: CpuEncoder::new(options).unwrap(), random: Random::new(3) }
}

fn encoder(variant: Variant, threads: u32, ty: TensorType, shape: Shape) -> CpuEncoder {
    let mut builder = builder(variant, threads);
    let program = builder.program(ty, shape);
    builder.encoder.prepare(program).unwrap();
    builder.encoder
}

/// Texts of different lengths.
fn texts() -> Vec<Vec<u32>> {
    let mut random = Random::new(8);
    [5, 1, CONTEXT, 17, 16, 9, 2]
        .map(|len| (0..len).map(|_| random.below(VOCAB) as u32).collect())
        .to_vec()
}

fn run(encoder: &mut CpuEncoder, texts: &[Vec<u32>]) -> Vec<f32> {
    let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    encoder.run(&texts).unwrap().to_vec()
}

fn variants() -> impl Iterator<Item = Variant> {
    Variant::ALL.iter().copied().filter(|variant| variant.score().is_some())
}

#[test]
fn every_variant_and_type_agrees_with_the_scalar_kernels() {
    for ty in TensorType::ALL {
        for shape in [WIDE, ODD] {
            if ty.row_bytes(shape.width).is_none() || ty.row_bytes(shape.hidden).is_none() {
                continue;
            }
            let wanted = run(&mut encoder(Variant::Scalar, 1, ty, shape), &texts());
            assert_eq!(wanted.len(), 120 * shape.width);
            // The last norm makes numbers of about 1.
            let bound = if ty.is_quantized() { 0.1 } else { 0.01 };
            for variant in variants().filter(|variant| *variant != Variant::Scalar) {
                let got = run(&mut encoder(variant, 2, ty, shape), &texts());
                let squares: f32 = got.iter().zip(&wanted).map(|(a, b)| (a - b).powi(2)).sum();
                let error = (squares / got.len() as f32).sqrt();
                assert!(error < bound, "{variant} {ty} {shape:?}: {error}");
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_other_texts_or_threads() {
    for variant in variants() {
        for (ty, shape) in [
            (TensorType::Q8_0, WIDE),
            (TensorType::Q4K, WIDE),
            (TensorType::F16, WIDE),
            (TensorType::F32, ODD),
        ] {
            let mut one = encoder(variant, 1, ty, shape);
            let alone: Vec<f32> =
                texts().into_iter().flat_map(|text| run(&mut one, &[text])).collect();
            for threads in [1, 2, 3] {
                let together = run(&mut encoder(variant, threads, ty, shape), &texts());
                assert!(together == alone, "{variant} {ty} {threads}");
            }
        }
    }
}

#[test]
fn impossible_texts_are_refused() {
    let mut encoder = encoder(Variant::best(), 1, TensorType::F32, ODD);
    let cases: [(Vec<Vec<u32>>, &str); 4] = [
        (vec![vec![1], vec![]], "a text of 0 tokens"),
        (vec![vec![1; CONTEXT + 1]], "a text of 71 tokens of 70"),
        (vec![vec![0, VOCAB as u32]], "token 40 of 40"),
        (vec![vec![1; 60]; 3], "180 rows, at most 160"),
    ];
    for (texts, wanted) in cases {
        let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
        let error = encoder.run(&texts).unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    }
    assert_eq!(encoder.run(&[]).unwrap(), &[0.0; 0]);
    let error = builder(Variant::best(), 1).encoder.run(&[&[1]]).unwrap_err();
    assert!(matches!(error, DeviceError::Invalid(_)), "{error}");
}

#[test]
fn impossible_programs_are_refused() {
    let mut builder = builder(Variant::best(), 1);
    let good = builder.program(TensorType::F32, ODD);
    let (matrix, vector) = (builder.matrix(TensorType::F32, 7, 7, false), builder.vector(7, 0.0));
    let spoil = |change: &dyn Fn(&mut EncoderProgram)| {
        let mut program = good.clone();
        change(&mut program);
        program
    };
    let bad = [
        spoil(&|program| program.max_rows = 0),
        spoil(&|program| program.heads = 0),
        spoil(&|program| program.heads = 5),
        spoil(&|program| program.tokens = matrix),
        spoil(&|program| program.positions = MatrixId(999)),
        spoil(&|program| program.types = Some(matrix)),
        spoil(&|program| program.norm.bias = vector),
        spoil(&|program| program.layers[0].attention[1].matrix = matrix),
        spoil(&|program| program.layers[1].up.bias = Some(vector)),
        spoil(&|program| program.layers[1].down.matrix = program.layers[1].up.matrix),
        spoil(&|program| program.layers[0].output_norm.weight = VectorId(999)),
    ];
    for program in bad {
        let error = builder.encoder.prepare(program).unwrap_err();
        assert!(matches!(error, DeviceError::Invalid(_)), "{error}");
    }
    builder.encoder.prepare(good).unwrap();
    let options = CpuOptions { max_memory_bytes: Some(1_000), ..CpuOptions::default() };
    let mut small = Builder { encoder: CpuEncoder::new(options).unwrap(), random: Random::new(1) };
    let bytes = matrix_bytes(&mut small.random, TensorType::F32, 4_096, 1.0);
    let usage = MatrixUse { gather: false, multiply: true };
    let desc = MatrixDesc { name: "matrix", rows: 64, cols: 64, ty: TensorType::F32, usage };
    let error = small.encoder.load_matrix(&desc, &bytes.as_slice()).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfMemory { .. }), "{error}");
}
