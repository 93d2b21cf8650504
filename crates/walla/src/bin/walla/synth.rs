//! `walla synth`: a model of a real shape with random weights.

use std::io::{BufWriter, Write};

use walla_model::synth::{self, Mixture, Model};

use crate::Failure;
use crate::args::Synth;
use crate::output::Target;

pub fn run(arguments: &Synth) -> Result<(), Failure> {
    let model = Model::named(&arguments.shape).ok_or_else(|| {
        let known: Vec<&str> = Model::ALL.iter().map(|model| model.name).collect();
        format!("no shape {:?}; there are: {}", arguments.shape, known.join(", "))
    })?;
    let mixture = Mixture::named(&arguments.types).ok_or_else(|| {
        let known: Vec<&str> = Mixture::ALL.iter().map(|mixture| mixture.name()).collect();
        format!("no types {:?}; there are: {}", arguments.types, known.join(", "))
    })?;
    let target = Target::new(&arguments.out, &[])?;
    let output = target.create()?;
    let mut out = BufWriter::with_capacity(1 << 20, &output.file);
    let written = synth::write(&model, mixture, arguments.seed, &mut out);
    written.map_err(|error| target.failed(&error))?.flush().map_err(|e| target.failed(&e))?;
    drop(out);
    output.finish().map_err(|error| target.failed(&error))
}
