"""WHERE: find the sites of a model, build its space, bind a policy, take it off again."""

from autodropout.attach.binding import Attachment, BoundSite, attach, attached, discover, space
from autodropout.attach.schedule import RateSchedule
from autodropout.attach.sites import NoSites, Role, Site

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
