"""The tier: published segments in an object store, durable acknowledgements from there, a wiped store back from there.

Promises: G5 (durable means written, read back and listed; a wiped server comes back without reusing a number) and the
healing part of G9. `docs/design/tier.md` argues why.

| file | purpose |
|---|---|
| objects.py | the seam to an object store: what each call promises |
| folder.py | a folder as an object store |
| cloud.py | S3, Google Cloud Storage and Azure |
| opening.py | from settings to objects |
| manifest.py | entries of the manifest, their form and their sum; reserved numbers |
| journal.py | the manifest as a log with one writer; fencing |
| copying.py | one segment into the tier, read back; one segment out of it |
| ledger.py | what is on its way, what may be listed, how far each channel is durable |
| pacing.py | a limit of bytes in a second |
| persistence.py | trying again until it works; alarms |
| uploader.py | turns: upload, list, tell, remove |
| sweeping.py | objects that no entry names |
| restore.py | a data directory from a manifest |
| check.py | whether everything is there that the manifest lists |
| tier.py | all of it from opening to closing |
"""

from __future__ import annotations

from holdfast.tier.restore import RestoreReport
from holdfast.tier.tier import Tier, TierStatistics

__all__ = ["RestoreReport", "Tier", "TierStatistics"]
