"""What can go wrong with a search and its ledger, each with its own type. A user's mistake is a `ValueError` too."""


class ChildError(RuntimeError):
    """The child's own mistake: raised at once when it gave no score before, with the traceback from the worker."""


class LedgerError(RuntimeError):
    """Something about a ledger; the message says what, and what to do about it. It never holds a password."""


class BadAddress(LedgerError, ValueError):
    """A storage URL that cannot be used."""


class NoSuchStudy(LedgerError, ValueError):
    """There is no such ledger, or no study of this name in it."""


class StudyMismatch(LedgerError, ValueError):
    """The study exists, and is not the one asked for."""


class BadSchema(LedgerError):
    """The ledger was written by another version of autodropout and cannot be used as it is."""


class StateError(LedgerError):
    """A call that the state machine of trials does not allow. Nothing was changed."""


class StudyOwned(LedgerError):
    """Another driver owns the study."""


class LostLease(LedgerError):
    """This driver owned the study and does so no longer: it must not write, and the database refuses it."""


class StorageError(LedgerError):
    """The database cannot do what was asked. The transaction was rolled back: nothing of it is kept."""


class StorageFull(StorageError):
    """No space left."""


class StorageBusy(StorageError):
    """Somebody else held a lock on the database for too long."""


class StorageDamaged(StorageError):
    """The database reports that its own content is damaged."""


class StorageLost(StorageError):
    """No connection to the database, or not any more."""
