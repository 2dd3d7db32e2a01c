"""Sound from files and pipes, as the model takes it: mono, float32, at its rate.

```
file --libsndfile--+
                   +-- frames (n, channels) -- MonoMixer -- samples (m,)
pipe --PcmStream---+                               |
                                                Levels: what is doubtful
```

Whatever is done to a sound is told in `notes`, whatever is doubtful about it in `warnings`.
"""

from __future__ import annotations

from voxtral_build.sound.files import Sound, read, sound_files
from voxtral_build.sound.stream import PcmStream, stream
from voxtral_build.sound.wav import Encoding, RawFormat

__all__ = ["Encoding", "PcmStream", "RawFormat", "Sound", "read", "sound_files", "stream"]
