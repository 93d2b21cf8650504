//! WAV files and streams: bounded reading of any of them as mono, and writing.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hound::{SampleFormat, WavReader, WavSpec, WavWriter};

/// Rates that the ear takes.
const RATES: std::ops::RangeInclusive<u32> = 4_000..=384_000;
/// Lengths in headers of streams whose length was not known, as ffmpeg and sox write them.
const UNKNOWN: [std::ops::RangeInclusive<u32>; 2] =
    [0x7FFF_0000..=0x7FFF_FFFF, 0xFFFF_0000..=0xFFFF_FFFF];
/// Most bytes of other chunks before the sound.
const MAX_HEADER: usize = 1 << 20;
/// Most samples of a file that is written: its lengths are numbers of 32 bits.
const MAX_SAMPLES: u64 = (u32::MAX as u64 - 64) / 2;

/// A WAV file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum WavError {
    /// The system's reason: check the path.
    #[error("{path}: {source}", path = path.display())]
    File { path: PathBuf, source: io::Error },
    /// Another kind of file, or a damaged one.
    #[error("{path}: no WAV file that can be read: {reason}", path = path.display())]
    Damaged { path: PathBuf, reason: &'static str },
    /// Convert it first.
    #[error(
        "{path}: integers of 8, 16, 24 or 32 bits and floats of 32 bits are read, this file has \
         others",
        path = path.display()
    )]
    Format { path: PathBuf },
    /// Convert it first.
    #[error("{path}: {rate} samples a second, expected 4,000 to 384,000", path = path.display())]
    Rate { path: PathBuf, rate: u32 },
    #[error("{path}: it has no sound", path = path.display())]
    Empty { path: PathBuf },
    /// An interrupted copy or recording.
    #[error(
        "{path}: it ends after {found} of its {expected} samples",
        path = path.display()
    )]
    Cut { path: PathBuf, found: u64, expected: u64 },
    /// Divide the text.
    #[error("the sound is longer than a WAV file can be, {} hours", MAX_SAMPLES / 3_600 / rate)]
    TooLong { rate: u64 },
}

impl WavError {
    fn of(path: &Path, error: hound::Error) -> Self {
        let path = path.to_owned();
        match error {
            hound::Error::IoError(source) if source.raw_os_error().is_some() => {
                Self::File { path, source }
            }
            // The reader's own error for the end of the file.
            hound::Error::IoError(_) => Self::Damaged { path, reason: "it ends in its header" },
            hound::Error::FormatError(reason) => Self::Damaged { path, reason },
            _ => Self::Format { path },
        }
    }
}

type Input = Box<dyn Read + Send>;

/// A WAV file that is being read.
pub struct Sound {
    path: PathBuf,
    reader: WavReader<Input>,
    spec: WavSpec,
    /// Samples so far.
    read: u64,
    /// A stream whose length its header does not have.
    is_stream: bool,
}

impl Sound {
    /// Opens a file, or standard input if it is `-`, and reads its header.
    pub fn open(path: &Path) -> Result<Self, WavError> {
        if path == Path::new("-") {
            return Self::new(Box::new(BufReader::new(io::stdin())), Path::new("standard input"));
        }
        let file = File::open(path);
        let file = file.map_err(|source| WavError::File { path: path.to_owned(), source })?;
        Self::new(Box::new(BufReader::new(file)), path)
    }

    fn new(mut input: Input, path: &Path) -> Result<Self, WavError> {
        let failed = |error| WavError::of(path, hound::Error::IoError(error));
        let (header, is_stream) = header(&mut input).map_err(failed)?;
        if header.starts_with(b"RF64") {
            let reason = "it is an RF64 file, which may be longer: divide or convert it";
            return Err(WavError::Damaged { path: path.to_owned(), reason });
        }
        let input: Input = Box::new(io::Cursor::new(header).chain(input));
        let reader = WavReader::new(input).map_err(|error| WavError::of(path, error))?;
        let spec = reader.spec();
        let path = path.to_owned();
        if !RATES.contains(&spec.sample_rate) {
            return Err(WavError::Rate { path, rate: spec.sample_rate });
        }
        let widest = if spec.sample_format == SampleFormat::Int { 8..=32 } else { 32..=32 };
        if !widest.contains(&spec.bits_per_sample) {
            return Err(WavError::Format { path });
        }
        if reader.duration() == 0 {
            return Err(WavError::Empty { path });
        }
        Ok(Self { path, reader, spec, read: 0, is_stream })
    }

    /// Samples per second.
    pub fn rate(&self) -> u32 {
        self.spec.sample_rate
    }

    /// The time of the samples so far.
    pub fn time(&self) -> Duration {
        walla_voice::duration(self.read, self.rate())
    }

    /// Appends the next samples, at most `count`, from -1 to 1; the mean of all channels. At the
    /// end of the sound, nothing.
    pub fn read(&mut self, count: usize, out: &mut Vec<f32>) -> Result<(), WavError> {
        for _ in 0..count {
            if self.read == u64::from(self.reader.duration()) {
                break;
            }
            match self.frame().map_err(|error| WavError::of(&self.path, error)) {
                Ok(sample) => out.push(sample),
                Err(WavError::Damaged { .. }) if self.is_stream => break,
                Err(WavError::Damaged { path, .. }) => {
                    let expected = u64::from(self.reader.duration());
                    return Err(WavError::Cut { path, found: self.read, expected });
                }
                Err(error) => return Err(error),
            }
            self.read += 1;
        }
        Ok(())
    }

    /// The mean of the next sample of all channels.
    fn frame(&mut self) -> Result<f32, hound::Error> {
        let channels = self.spec.channels;
        let mut sum = 0.0;
        if self.spec.sample_format == SampleFormat::Float {
            for sample in self.reader.samples::<f32>().take(channels.into()) {
                sum += f64::from(sample?);
            }
            return Ok((sum / f64::from(channels)) as f32);
        }
        for sample in self.reader.samples::<i32>().take(channels.into()) {
            sum += f64::from(sample?);
        }
        let full = f64::from(self.spec.bits_per_sample - 1).exp2();
        Ok((sum / f64::from(channels) / full) as f32)
    }
}

/// The bytes to the begin of the sound, of a WAV file of any length; and whether its header does
/// not know the length. It has the longest one then. Of other files, all bytes that were read.
fn header(input: &mut impl Read) -> io::Result<(Vec<u8>, bool)> {
    let (mut bytes, mut align) = (Vec::new(), 1);
    let mut next = |bytes: &mut Vec<u8>, count: usize| -> io::Result<bool> {
        let before = bytes.len();
        input.by_ref().take(count as u64).read_to_end(bytes)?;
        Ok(bytes.len() == before + count)
    };
    if !next(&mut bytes, 12)? || !bytes.starts_with(b"RIFF") {
        return Ok((bytes, false));
    }
    while bytes.len() < MAX_HEADER && next(&mut bytes, 8)? {
        let Some((rest, [a, b, c, d])) = bytes.split_last_chunk::<4>() else { break };
        let length = u32::from_le_bytes([*a, *b, *c, *d]);
        if rest.ends_with(b"data") {
            let is_unknown = UNKNOWN.iter().any(|range| range.contains(&length));
            if let Some(end) = bytes.last_chunk_mut::<4>().filter(|_| is_unknown) {
                // The reader takes whole samples of all channels only.
                *end = (u32::MAX - u32::MAX % align).to_le_bytes();
            }
            return Ok((bytes, is_unknown));
        }
        let is_format = rest.ends_with(b"fmt ");
        let content = bytes.len();
        // Chunks have an even length.
        let length = length as usize + length as usize % 2;
        if length > MAX_HEADER || !next(&mut bytes, length)? {
            break;
        }
        if let (true, Some(&[a, b])) = (is_format, bytes.get(content + 12..content + 14)) {
            align = u32::from(u16::from_le_bytes([a, b])).max(1);
        }
    }
    Ok((bytes, false))
}

/// Sound that is being written: 16 bits, mono.
pub struct Writer<'a> {
    to: To<'a>,
    rate: u32,
    written: u64,
}

enum To<'a> {
    File(Box<WavWriter<BufWriter<&'a File>>>),
    Stream(Box<dyn Write + 'a>),
}

impl<'a> Writer<'a> {
    /// Begins a file.
    pub fn new(file: &'a File, rate: u32) -> Result<Self, crate::Failure> {
        let sample_format = SampleFormat::Int;
        let spec = WavSpec { channels: 1, sample_rate: rate, bits_per_sample: 16, sample_format };
        let writer = WavWriter::new(BufWriter::new(file), spec)?;
        Ok(Self { to: To::File(Box::new(writer)), rate, written: 0 })
    }

    /// Whether a file can have a header, which is completed at the end.
    pub fn can_seek(mut file: &'a File) -> bool {
        file.stream_position().is_ok()
    }

    /// Samples alone.
    pub fn raw(out: impl Write + 'a, rate: u32) -> Self {
        Self { to: To::Stream(Box::new(out)), rate, written: 0 }
    }

    /// A WAV file of unknown length.
    pub fn stream(mut out: impl Write + 'a, rate: u32) -> Result<Self, crate::Failure> {
        let mut header = Vec::with_capacity(44);
        header.extend(b"RIFF\xff\xff\xff\xffWAVEfmt ");
        // Length of the format, integers, one channel.
        header.extend([16, 0, 0, 0, 1, 0, 1, 0]);
        header.extend(rate.to_le_bytes());
        header.extend((2 * rate).to_le_bytes());
        // Bytes and bits of a sample.
        header.extend([2, 0, 16, 0]);
        header.extend(b"data\xff\xff\xff\xff");
        out.write_all(&header)?;
        Ok(Self::raw(out, rate))
    }

    /// Appends samples from -1 to 1.
    pub fn write(&mut self, samples: &[f32]) -> Result<(), crate::Failure> {
        let sample = |sample: &f32| (sample.clamp(-1.0, 1.0) * 32_767.0).round() as i16;
        let samples = samples.iter().map(sample);
        self.written += samples.len() as u64;
        match &mut self.to {
            To::File(_) if self.written > MAX_SAMPLES => {
                return Err(WavError::TooLong { rate: self.rate.into() }.into());
            }
            To::File(writer) => {
                for sample in samples {
                    writer.write_sample(sample)?;
                }
            }
            To::Stream(out) => {
                let bytes: Vec<[u8; 2]> = samples.map(i16::to_le_bytes).collect();
                out.write_all(bytes.as_flattened())?;
                out.flush()?;
            }
        }
        Ok(())
    }

    /// Samples so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Completes the header.
    pub fn finish(self) -> Result<(), hound::Error> {
        match self.to {
            To::File(writer) => writer.finalize(),
            To::Stream(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A file of a tone of 0.5, in as many samples.
    fn file(bits_per_sample: u16, sample_format: SampleFormat, channels: u16) -> Vec<u8> {
        let spec = WavSpec { channels, sample_rate: 8_000, bits_per_sample, sample_format };
        let mut bytes = Cursor::new(Vec::new());
        let mut writer = WavWriter::new(&mut bytes, spec).unwrap();
        for index in 0..100_u8 {
            for channel in 0..channels {
                // All channels but the first are silent.
                let sample = if channel == 0 { (f32::from(index) * 0.3).sin() * 0.5 } else { 0.0 };
                if sample_format == SampleFormat::Float {
                    writer.write_sample(sample).unwrap();
                } else {
                    let full = f64::from(bits_per_sample - 1).exp2();
                    writer.write_sample((f64::from(sample) * full) as i32).unwrap();
                }
            }
        }
        writer.finalize().unwrap();
        bytes.into_inner()
    }

    fn read(bytes: &[u8]) -> Result<Vec<f32>, WavError> {
        let mut sound = Sound::new(Box::new(Cursor::new(bytes.to_owned())), Path::new("a.wav"))?;
        let mut samples = Vec::new();
        loop {
            let before = samples.len();
            sound.read(7, &mut samples)?;
            if samples.len() == before {
                assert_eq!(sound.time(), Duration::from_micros(125) * samples.len() as u32);
                return Ok(samples);
            }
        }
    }

    #[test]
    fn all_formats_have_the_same_samples() {
        use SampleFormat::{Float, Int};
        for (bits, format) in [(8, Int), (16, Int), (24, Int), (32, Int), (32, Float)] {
            for channels in [1, 2, 6] {
                let samples = read(&file(bits, format, channels)).unwrap();
                assert_eq!(samples.len(), 100);
                for (index, sample) in samples.iter().enumerate() {
                    let expected = (index as f32 * 0.3).sin() * 0.5 / f32::from(channels);
                    let worst = 2.0 / f32::from(bits.min(16) - 1).exp2();
                    assert!((sample - expected).abs() <= worst, "{bits} {channels}: {sample}");
                }
            }
        }
    }

    #[test]
    fn each_cut_is_an_error() {
        let whole = file(16, SampleFormat::Int, 2);
        for length in 0..whole.len() {
            let error = read(&whole[..length]).unwrap_err();
            let is_header = length < 44;
            assert_eq!(matches!(error, WavError::Damaged { .. }), is_header, "{length}: {error}");
            assert_eq!(matches!(error, WavError::Cut { .. }), !is_header, "{length}: {error}");
        }
    }

    #[test]
    fn a_stream_ends_with_its_bytes() {
        for (bits, format, channels) in [(16, SampleFormat::Int, 1), (24, SampleFormat::Int, 6)] {
            let whole = file(bits, format, channels);
            let samples = read(&whole).unwrap();
            let data = whole.windows(4).position(|it| it == b"data").unwrap() + 4;
            let frame = usize::from(channels * bits / 8);
            for length in [u32::MAX, u32::MAX - 40, 0x7FFF_FFFF, 0x7FFF_FFDB] {
                let mut stream = whole.clone();
                stream[data..data + 4].copy_from_slice(&length.to_le_bytes());
                assert_eq!(read(&stream).unwrap(), samples);
                // In the middle of a sample.
                let cut = &stream[..stream.len() - frame / 2];
                assert_eq!(read(cut).unwrap(), samples[..99]);
            }
        }
    }

    #[test]
    fn each_damage_is_an_error_or_sound() {
        for whole in [file(16, SampleFormat::Int, 2), file(24, SampleFormat::Int, 6)] {
            let (mut errors, mut sounds) = (0, 0);
            for at in 0..80 {
                for value in 0..=u8::MAX {
                    let mut bytes = whole.clone();
                    bytes[at] = value;
                    match read(&bytes) {
                        Ok(_) => sounds += 1,
                        Err(_) => errors += 1,
                    }
                }
            }
            assert!(errors > 1_000 && sounds > 1_000, "{errors} {sounds}");
        }
    }

    #[test]
    fn rates_and_files_without_sound_are_named() {
        let spec = |sample_rate| WavSpec {
            channels: 1,
            sample_rate,
            bits_per_sample: 16,
            sample_format: SampleFormat::Int,
        };
        for (rate, samples, expected) in
            [(3_999, 1, "3999 samples a second"), (384_001, 1, "384001"), (16_000, 0, "no sound")]
        {
            let mut bytes = Cursor::new(Vec::new());
            let mut writer = WavWriter::new(&mut bytes, spec(rate)).unwrap();
            (0..samples).for_each(|_| writer.write_sample(1_i16).unwrap());
            writer.finalize().unwrap();
            let error = read(bytes.get_ref()).unwrap_err().to_string();
            assert!(error.contains(expected) && error.starts_with("a.wav: "), "{error}");
        }
    }
}
