/* What the standard demands of an FMI 2.0 binary and nobody calls here. */
#define UNUSED(NAME) int NAME(void) { return 3; }
UNUSED(fmi2SetDebugLogging) UNUSED(fmi2Reset)
UNUSED(fmi2GetInteger) UNUSED(fmi2GetBoolean) UNUSED(fmi2GetString)
UNUSED(fmi2SetInteger) UNUSED(fmi2SetBoolean) UNUSED(fmi2SetString)
UNUSED(fmi2GetFMUstate) UNUSED(fmi2SetFMUstate) UNUSED(fmi2FreeFMUstate)
UNUSED(fmi2SerializedFMUstateSize) UNUSED(fmi2SerializeFMUstate) UNUSED(fmi2DeSerializeFMUstate)
UNUSED(fmi2GetDirectionalDerivative) UNUSED(fmi2SetRealInputDerivatives) UNUSED(fmi2GetRealOutputDerivatives)
UNUSED(fmi2CancelStep) UNUSED(fmi2GetStatus) UNUSED(fmi2GetIntegerStatus) UNUSED(fmi2GetStringStatus)
