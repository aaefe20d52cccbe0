"""WHERE: find the sites of a model, build its space, bind a policy, take it off again."""

from typing import TYPE_CHECKING

from autodropout.lazy import lazy

if TYPE_CHECKING:
    from autodropout.attach.attachment import Attachment, BoundSite
    from autodropout.attach.binding import attach, attached, space
    from autodropout.attach.kinds import discover
    from autodropout.attach.schedule import RateSchedule
    from autodropout.attach.sites import NoSites, Role, Site
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "autodropout.attach.attachment": ["Attachment", "BoundSite"],
            "autodropout.attach.binding": ["attach", "attached", "space"],
            "autodropout.attach.kinds": ["discover"],
            "autodropout.attach.schedule": ["RateSchedule"],
            "autodropout.attach.sites": ["NoSites", "Role", "Site"],
        },
    )

__all__ = [
    "Attachment",
    "BoundSite",
    "NoSites",
    "RateSchedule",
    "Role",
    "Site",
    "attach",
    "attached",
    "discover",
    "space",
]
